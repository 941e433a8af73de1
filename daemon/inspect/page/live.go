package page

import (
	"bytes"
	"context"
	"net/http"
	"sync"
	"time"

	"onerule/daemon/inspect"
)

// A Source says what was counted.
type Source interface {
	Hits(context.Context) (inspect.Hits, error)
}

// fresh is how long a page is good: all who ask meanwhile get the same one, so that nobody
// has the kernel read more often.
const fresh = time.Second

// stale is how long after a reading there is no rate: nobody means that of an hour.
const stale = time.Minute

// Handler answers with the page as it is now.
func Handler(s Source) http.Handler { return &live{source: s, now: time.Now} }

// live keeps the last readings: rates are of the time between two.
type live struct {
	source Source
	now    func() time.Time

	mu           sync.Mutex
	before, last inspect.Hits
	drawn        []byte
	until        time.Time // drawn is good
}

// policy lets a browser load nothing, but for the page itself, again.
const policy = "default-src 'none'; style-src 'unsafe-inline'; script-src 'unsafe-inline'; img-src data:; connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

// ServeHTTP answers those who read; nobody changes anything here.
func (l *live) ServeHTTP(w http.ResponseWriter, r *http.Request) {
	if r.Method != http.MethodGet && r.Method != http.MethodHead {
		w.Header().Set("Allow", "GET, HEAD")
		http.Error(w, "this page is only read", http.StatusMethodNotAllowed)
		return
	}
	body, err := l.page(r.Context())
	if err != nil {
		http.Error(w, err.Error(), http.StatusInternalServerError)
		return
	}
	h := w.Header()
	h.Set("Content-Type", "text/html; charset=utf-8")
	h.Set("Content-Security-Policy", policy)
	h.Set("X-Content-Type-Options", "nosniff")
	h.Set("Referrer-Policy", "no-referrer")
	h.Set("Cache-Control", "no-store")
	_, _ = w.Write(body) // whoever asked has gone
}

// page gives the page, drawn anew if the last one is old.
func (l *live) page(ctx context.Context) ([]byte, error) {
	l.mu.Lock()
	defer l.mu.Unlock()
	now := l.now()
	if now.Before(l.until) {
		return l.drawn, nil
	}
	hits, err := l.source.Hits(ctx)
	if err != nil {
		return nil, err
	}
	l.before, l.last = l.last, hits
	if hits.At.Sub(l.before.At) > stale || l.before.Off != "" { // what was not told then did not come since
		l.before = hits
	}
	var body bytes.Buffer
	if err := (Page{Reading: inspect.ReadingOf(l.before, hits, "total"), Off: hits.Off, Live: true}).Write(&body); err != nil {
		return nil, err
	}
	l.drawn, l.until = body.Bytes(), now.Add(fresh)
	return l.drawn, nil
}
