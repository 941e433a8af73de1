package cli

import (
	"cmp"
	"context"
	"errors"
	"fmt"
	"slices"
	"time"

	"github.com/spf13/cobra"

	"onerule/daemon/inspect"
)

// topOptions are what top is asked for.
type topOptions struct {
	out      output
	every    time.Duration
	readings int
	sort     string
	limit    int
	services bool
}

func topCommand(o Options) *cobra.Command {
	var t topOptions
	cmd := &cobra.Command{
		Use:   "top [flags]",
		Short: "new connections per second that Services and their endpoints are given",
		Long: `top shows how many new connections each Service and each of its endpoints is given, per
second and since counting began, as the kernel counts them. On a terminal it goes on in
place until it is interrupted. One reading takes as long as --every.`,
		Example: `  oneruled top
  oneruled top --sort total --services
  oneruled top -n 1 --every 5s
  oneruled top -o json | jq '.services[0]'`,
		Args: arguments(0, 0, "no argument"),
		RunE: func(cmd *cobra.Command, _ []string) error {
			if err := t.check(); err != nil {
				return err
			}
			if t.out.json {
				t.readings = 1
			}
			return t.run(cmd, o.daemon())
		},
	}
	t.out.register(cmd)
	cmd.Flags().DurationVarP(&t.every, "every", "d", 2*time.Second, "`time` of one reading")
	cmd.Flags().IntVarP(&t.readings, "readings", "n", 0, "`number` of readings; 0: until it is interrupted. With -o json it is one")
	cmd.Flags().StringVar(&t.sort, "sort", "rate", "`order`: by rate, total or name")
	cmd.Flags().IntVar(&t.limit, "limit", 0, "`number` of Services at most; 0: as many as the terminal has room for, or all")
	cmd.Flags().BoolVar(&t.services, "services", false, "only the sum of each Service")
	return cmd
}

func (t topOptions) check() error {
	switch {
	case !slices.Contains([]string{"rate", "total", "name"}, t.sort):
		return fmt.Errorf("--sort: %q is neither rate, total nor name", t.sort)
	case t.every < 100*time.Millisecond:
		return errors.New("--every: it is 100ms at least")
	case t.readings < 0 || t.limit < 0:
		return errors.New("--readings and --limit: they are not below 0")
	}
	return nil
}

// A reading is what was counted in some time.
type reading struct {
	At       time.Time     `json:"at"`
	Seconds  float64       `json:"seconds"`
	Services []serviceHits `json:"services"`
}

// ServiceHits are those of a service port.
type serviceHits struct {
	Namespace string         `json:"namespace"`
	Service   string         `json:"service"`
	Port      string         `json:"port"`
	Protocol  string         `json:"protocol"`
	Rate      float64        `json:"rate"` // connections per second
	Total     uint64         `json:"total"`
	Endpoints []endpointHits `json:"endpoints"`
}

// EndpointHits are those of one endpoint. Without an address it is about all that are gone.
type endpointHits struct {
	Address string  `json:"address"`
	Rate    float64 `json:"rate"`
	Total   uint64  `json:"total"`
	// Share is the part of the Service's connections in this reading, or of all if there
	// were none: 0 to 1.
	Share float64 `json:"share"`
}

// run reads and shows until it was often enough, or is interrupted.
func (t topOptions) run(cmd *cobra.Command, d inspect.Daemon) error {
	ctx := cmd.Context()
	s := screenOf(cmd.OutOrStdout())
	before, err := t.hits(ctx, d)
	if err != nil {
		return err
	}
	tick := time.NewTicker(t.every)
	defer tick.Stop()
	for n := 1; t.readings == 0 || n <= t.readings; n++ {
		select {
		case <-ctx.Done():
			return nil
		case <-tick.C:
		}
		now, err := t.hits(ctx, d)
		if err != nil {
			return err
		}
		r := readingOf(before, now, t.sort)
		before = now
		if t.out.json {
			return show(s, t.out, r, nil)
		}
		t.write(s, r, n == 1)
	}
	return nil
}

func (t topOptions) hits(ctx context.Context, d inspect.Daemon) (inspect.Hits, error) {
	h, err := d.Hits(ctx)
	if err == nil && h.Off != "" {
		err = errors.New(h.Off)
	}
	return h, err
}

// hitOf names an endpoint of a service port.
type hitOf struct{ namespace, service, port, protocol, endpoint string }

func keyOf(h inspect.Hit) hitOf {
	return hitOf{h.Namespace, h.Service, h.Port, h.Protocol, h.Endpoint}
}

// readingOf says what was counted between two times.
func readingOf(before, now inspect.Hits, order string) reading {
	r := reading{At: now.At, Seconds: now.At.Sub(before.At).Seconds(), Services: []serviceHits{}}
	old := map[hitOf]uint64{}
	for _, h := range before.Hits {
		old[keyOf(h)] = h.Connections
	}
	services := map[hitOf]*serviceHits{}
	for _, h := range now.Hits {
		k := keyOf(h)
		k.endpoint = ""
		if services[k] == nil {
			services[k] = &serviceHits{Namespace: h.Namespace, Service: h.Service, Port: h.Port, Protocol: h.Protocol}
		}
		services[k].add(h, rate(old[keyOf(h)], h.Connections, r.Seconds))
	}
	for _, s := range services {
		s.finish(order)
		r.Services = append(r.Services, *s)
	}
	slices.SortFunc(r.Services, func(a, b serviceHits) int { return a.compare(b, order) })
	return r
}

// rate is 0 where counting began anew.
func rate(before, now uint64, seconds float64) float64 {
	if now < before || seconds <= 0 {
		return 0
	}
	return float64(now-before) / seconds
}

func (s *serviceHits) add(h inspect.Hit, rate float64) {
	s.Total += h.Connections
	s.Rate += rate
	s.Endpoints = append(s.Endpoints, endpointHits{Address: h.Endpoint, Rate: rate, Total: h.Connections})
}

// finish gives each endpoint its share, and puts them in order. What those that are gone
// had counted is taken from them in one reading, and is no rate.
func (s *serviceHits) finish(order string) {
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		if e.Address == "" {
			s.Rate -= e.Rate
			e.Rate = 0
		}
	}
	for i := range s.Endpoints {
		e := &s.Endpoints[i]
		switch {
		case s.Rate > 0:
			e.Share = e.Rate / s.Rate
		case s.Total > 0:
			e.Share = float64(e.Total) / float64(s.Total)
		}
	}
	slices.SortFunc(s.Endpoints, func(a, b endpointHits) int {
		return cmp.Or(compare(order, a.Rate, b.Rate, a.Total, b.Total), cmp.Compare(a.Address, b.Address))
	})
}

func (s serviceHits) compare(o serviceHits, order string) int {
	return cmp.Or(compare(order, s.Rate, o.Rate, s.Total, o.Total), cmp.Compare(s.Namespace, o.Namespace), cmp.Compare(s.Service, o.Service),
		cmp.Compare(s.Port, o.Port), cmp.Compare(s.Protocol, o.Protocol))
}

// compare puts what is larger first, unless the order is that of names.
func compare(order string, rate, otherRate float64, total, otherTotal uint64) int {
	switch order {
	case "rate":
		return cmp.Or(cmp.Compare(otherRate, rate), cmp.Compare(otherTotal, total))
	case "total":
		return cmp.Or(cmp.Compare(otherTotal, total), cmp.Compare(otherRate, rate))
	}
	return 0
}
