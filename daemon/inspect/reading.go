package inspect

import (
	"cmp"
	"slices"
	"time"
)

// A Reading is what was counted in some time.
type Reading struct {
	At       time.Time     `json:"at"`
	Seconds  float64       `json:"seconds"`
	Services []ServiceHits `json:"services"`
}

// ServiceHits are those of a service port.
type ServiceHits struct {
	Namespace string         `json:"namespace"`
	Service   string         `json:"service"`
	Port      string         `json:"port"`
	Protocol  string         `json:"protocol"`
	Rate      float64        `json:"rate"` // connections per second
	Total     uint64         `json:"total"`
	Endpoints []EndpointHits `json:"endpoints"`
}

// EndpointHits are those of one endpoint. Without an address it is about all that are gone.
type EndpointHits struct {
	Address string  `json:"address"`
	Rate    float64 `json:"rate"`
	Total   uint64  `json:"total"`
	// Share is the part of the Service's connections in this reading, or of all if there
	// were none: 0 to 1.
	Share float64 `json:"share"`
}

// hitOf names an endpoint of a service port.
type hitOf struct{ namespace, service, port, protocol, endpoint string }

func keyOf(h Hit) hitOf {
	return hitOf{h.Namespace, h.Service, h.Port, h.Protocol, h.Endpoint}
}

// ReadingOf says what was counted between two times.
func ReadingOf(before, now Hits, order string) Reading {
	r := Reading{At: now.At, Seconds: now.At.Sub(before.At).Seconds(), Services: []ServiceHits{}}
	old := map[hitOf]uint64{}
	for _, h := range before.Hits {
		old[keyOf(h)] = h.Connections
	}
	services := map[hitOf]*ServiceHits{}
	for _, h := range now.Hits {
		k := keyOf(h)
		k.endpoint = ""
		if services[k] == nil {
			services[k] = &ServiceHits{Namespace: h.Namespace, Service: h.Service, Port: h.Port, Protocol: h.Protocol}
		}
		services[k].add(h, rate(old[keyOf(h)], h.Connections, r.Seconds))
	}
	for _, s := range services {
		s.finish(order)
		r.Services = append(r.Services, *s)
	}
	slices.SortFunc(r.Services, func(a, b ServiceHits) int { return a.compare(b, order) })
	return r
}

// rate is 0 where counting began anew.
func rate(before, now uint64, seconds float64) float64 {
	if now < before || seconds <= 0 {
		return 0
	}
	return float64(now-before) / seconds
}

func (s *ServiceHits) add(h Hit, rate float64) {
	s.Total += h.Connections
	s.Rate += rate
	s.Endpoints = append(s.Endpoints, EndpointHits{Address: h.Endpoint, Rate: rate, Total: h.Connections})
}

// finish gives each endpoint its share, and puts them in order. What those that are gone
// had counted is taken from them in one reading, and is no rate.
func (s *ServiceHits) finish(order string) {
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
	slices.SortFunc(s.Endpoints, func(a, b EndpointHits) int {
		return cmp.Or(compare(order, a.Rate, b.Rate, a.Total, b.Total), cmp.Compare(a.Address, b.Address))
	})
}

func (s ServiceHits) compare(o ServiceHits, order string) int {
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

// Serving counts the endpoints that are there.
func (s ServiceHits) Serving() int {
	n := 0
	for _, e := range s.Endpoints {
		if e.Address != "" {
			n++
		}
	}
	return n
}

// PortWord names the port, or says its protocol where it has no name.
func (s ServiceHits) PortWord() string {
	if s.Port == "" {
		return s.Protocol
	}
	return s.Port + "/" + s.Protocol
}
