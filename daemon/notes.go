package daemon

import "onerule/daemon/model"

// bySource begins the names of objects whose faults were found as they came in.
const bySource = "source: "

// note takes in what is wrong with objects, and logs what is new. Whoever claims what an
// older Service holds, or an address that is not allowed, is told by an event, too: its
// owner may see no node's log.
func (d *Daemon) note(sourced map[string][]model.Note, planned map[model.Name][]model.Note) {
	for object, notes := range sourced {
		d.noteOne(bySource, object, notes)
	}
	for name, notes := range planned {
		key := model.Key{Kind: model.KindService, Name: name}
		for _, n := range d.noteOne("plan: ", key.String(), notes) {
			switch n.Reason {
			case model.ReasonDuplicateFrontend:
				d.event(Event{Object: key, Reason: "FrontendHeldByAnother", Note: n.Field + ": " + n.Detail})
			case model.ReasonRefusedAddress:
				d.event(Event{Object: key, Reason: "ExternalIPRefused", Note: n.Field + ": " + n.Detail})
			}
		}
	}
	if len(sourced)+len(planned) > 0 {
		d.metrics.Skipped(d.notes)
	}
}

// noteOne gives those notes that are new.
func (d *Daemon) noteOne(by, object string, notes []model.Note) []model.Note {
	known := map[model.Note]bool{}
	for _, n := range d.notes[by+object] {
		known[n] = true
	}
	var fresh []model.Note
	for _, n := range notes {
		if !known[n] {
			fresh = append(fresh, n)
			d.cfg.Log.Info("skipped", "object", object, "field", n.Field, "reason", n.Reason, "detail", n.Detail)
		}
	}
	if len(notes) == 0 {
		delete(d.notes, by+object)
		return nil
	}
	d.notes[by+object] = notes
	return fresh
}
