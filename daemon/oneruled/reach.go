package main

import (
	"context"
	"time"

	"github.com/go-logr/logr"
)

const (
	// silence is how long an API server is not heard before that is said.
	silence = 10 * time.Second
	// listenEvery is how often it is looked whether it is heard.
	listenEvery = time.Second
)

// A reach is the way to the API server.
type reach struct {
	// byService says that the server is asked at the address of the Service kubernetes.
	byService bool
	lost      func() time.Duration // as long the server has not been heard
	log       logr.Logger
	every     time.Duration // 0: listenEvery
}

// askedByService says whether what a pod is told of the API server is the address of its
// Service. The variable of the Service itself has that also where a manifest says another
// one for the server.
func askedByService(getenv func(string) string) bool {
	host := getenv("KUBERNETES_SERVICE_HOST")
	return host != "" && host == getenv("KUBERNETES_PORT_443_TCP_ADDR")
}

// remedy says what to do when nobody translates the Service's address.
const remedy = "nobody but a Service proxy translates it: say an address that nodes reach by themselves in the ConfigMap onerule-apiserver (apiServer.host with Helm), and start the pods of oneruled anew"

// tell says once that the server is not heard, and again after it was, until ctx ends.
func (r reach) tell(ctx context.Context) error {
	if r.lost == nil { // files are read
		<-ctx.Done()
		return nil
	}
	if r.byService {
		r.log.Info("the API server is asked at the address of the Service kubernetes, which will not do after the next start of this node if this is its only Service proxy", "remedy", remedy)
	}
	every := r.every
	if every == 0 {
		every = listenEvery
	}
	tick := time.NewTicker(every)
	defer tick.Stop()
	for said := false; ; {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		silent := r.lost() >= silence
		if silent && !said {
			r.say()
		}
		said = silent
	}
}

func (r reach) say() {
	if r.byService {
		r.log.Error(nil, "the API server is not heard at the address of the Service kubernetes", "after", silence, "remedy", remedy)
		return
	}
	r.log.Error(nil, "the API server is not heard, what is in the kernel goes on as it is", "after", silence)
}
