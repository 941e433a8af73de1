package main

import "onerule/test/conformance"

// cniRows is the list about the plugin.
func cniRows() []row {
	dues := map[conformance.When]due{conformance.Now: now, conformance.Later: later, conformance.Never: foreign}
	var all []row
	for _, i := range conformance.Items() {
		all = append(all, row{id: i.ID, sees: i.Says, report: i.Report, due: dues[i.When]})
	}
	return all
}
