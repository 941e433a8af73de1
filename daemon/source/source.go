// Package source reads the objects of a cluster, from an API server or from
// manifest files, and delivers them as values of package model. Kubernetes'
// client library and API types end here.
package source

import "onerule/daemon/model"

// A Sink takes what a source finds. Its methods may be called from any goroutine
// and return at once.
type Sink interface {
	// Changed delivers an object as it is now, or says that it is gone.
	Changed(model.Change)
	// Noted replaces the notes of an object, or of a manifest file; without notes
	// there are none any more. A source calls it only when they differ from those
	// that it gave before, and logs none of them: that is the sink's.
	Noted(object string, notes []model.Note)
	// Synced says that every kind has been delivered once, completely. It is
	// called once.
	Synced()
}
