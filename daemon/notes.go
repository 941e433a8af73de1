package daemon

import "onerule/daemon/model"

// note takes in what is wrong with objects, and logs what is new.
func (d *Daemon) note(sourced map[string][]model.Note, planned map[model.Name][]model.Note) {
	for object, notes := range sourced {
		d.noteOne("source: ", object, notes)
	}
	for name, notes := range planned {
		d.noteOne("plan: ", model.Key{Kind: model.KindService, Name: name}.String(), notes)
	}
	if len(sourced)+len(planned) > 0 {
		d.metrics.Skipped(d.notes)
	}
}

func (d *Daemon) noteOne(by, object string, notes []model.Note) {
	known := map[model.Note]bool{}
	for _, n := range d.notes[by+object] {
		known[n] = true
	}
	for _, n := range notes {
		if !known[n] {
			d.cfg.Log.Info("skipped", "object", object, "field", n.Field, "reason", n.Reason, "detail", n.Detail)
		}
	}
	if len(notes) == 0 {
		delete(d.notes, by+object)
		return
	}
	d.notes[by+object] = notes
}
