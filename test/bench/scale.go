package main

import (
	"context"
	"fmt"
	"time"

	"onerule/test/netns"
)

const (
	// loads is how often a size is loaded, each time by a new process in a new
	// namespace.
	loads = 3
	// firsts is how many numbers of endpoints are made that no Service had before.
	firsts = 10
	// looked says that one change in so many is looked up in the kernel.
	looked = 20
)

// A scale is what was measured with one number of Services.
type scale struct {
	services int
	loads    []load
	restart  load
	first    series          // changes to a number of endpoints that was never seen
	replaced series          // an endpoint in the place of another
	numbered series          // an endpoint less, an endpoint more
	verdicts []time.Duration // a verdict written anew, with nothing around it
	memory   sizes
	rules    [2]int // of IPv4 after the load, and after all changes
	verified int    // changes looked up in the kernel
	kinds    []kindChanges
}

// A load is one start of a daemon.
type load struct {
	synced  time.Duration      // from everything delivered to everything in the kernel
	began   time.Duration      // from the start of the process to the same
	sent    time.Duration      // from the start of the process to everything delivered
	peak    int64              // bytes
	did     map[string]float64 // operations
	settled int64              // bytes
}

// A series is many changes of a sort.
type series struct {
	event  []time.Duration // from the event leaving the API server to the kernel
	inside []time.Duration // from the change coming into the daemon to the kernel
	floor  []time.Duration // the same elements, written with nothing around it
	did    map[string]float64
}

// sizes are a daemon's memory in bytes.
type sizes struct {
	peak    int64 // the most ever
	loaded  int64 // when the first load was in
	settled int64 // after all changes, as it is
	freed   int64 // after giving back what the runtime holds in reserve
}

// A scaler measures one size.
type scaler struct {
	cluster *cluster
	api     *apiServer
	subject *subject
	kernel  *kernel
	floor   *floor
	rest    time.Duration // see awaitRest; 0: don't wait
	result  *scale
}

// measureScale measures a cluster of ClusterIPs.
func measureScale(ctx context.Context, services, changes int, progress func(string, ...any)) (*scale, error) {
	m := &scaler{cluster: newCluster(services), result: &scale{services: services}}
	return m.result, m.measure(progress, func() (err error) {
		if m.floor, err = openFloor(ctx, m.cluster); err != nil {
			return err
		}
		defer m.floor.close()
		progress("%d services: 2 x %d changes", services, changes)
		return m.changes(ctx, changes)
	})
}

// measure loads the cluster, lets changes be made to it, and restarts the daemon over
// what they left.
func (m *scaler) measure(progress func(string, ...any), changes func() error) (err error) {
	services := len(m.cluster.endpoints)
	if m.api, err = newAPIServer(m.cluster); err != nil {
		return err
	}
	for i := range loads - 1 {
		progress("%d services: load %d of %d", services, i+1, loads)
		if err := m.inNamespace(nil); err != nil {
			return err
		}
	}
	progress("%d services: load %d of %d", services, loads, loads)
	return m.inNamespace(func(ns *netns.NS, url string) error {
		if m.kernel, err = openKernel(ns); err != nil {
			return err
		}
		defer m.kernel.close()
		if err := m.between(changes); err != nil {
			return err
		}
		progress("%d services: restart over the loaded table", services)
		return m.startAgain(ns, url)
	})
}

// between looks at the kernel and the memory before and after changes.
func (m *scaler) between(changes func() error) (err error) {
	r := m.result
	r.memory.loaded = r.loads[len(r.loads)-1].settled
	if r.rules[0], err = m.kernel.rules(); err != nil {
		return err
	}
	for i := range min(50, len(m.cluster.endpoints)) {
		if err := m.kernel.has(m.cluster.frontends(i)); err != nil {
			return fmt.Errorf("after the load: service %d: %w", i, err)
		}
	}
	if err := changes(); err != nil {
		return err
	}
	if r.rules[1], err = m.kernel.rules(); err != nil {
		return err
	}
	return m.weigh()
}

// inNamespace loads a new daemon in a new namespace, does something with it, and
// ends both.
func (m *scaler) inNamespace(then func(ns *netns.NS, url string) error) error {
	ns, err := netns.Open("node")
	if err != nil {
		return err
	}
	defer ns.Close()
	url, stop, err := m.api.listen(ns)
	if err != nil {
		return err
	}
	defer stop()
	if m.subject, err = startSubject(ns, url); err != nil {
		return err
	}
	defer func() { m.subject.kill() }()
	l, err := m.load()
	if err != nil {
		return err
	}
	m.result.loads = append(m.result.loads, l)
	if then == nil {
		return nil
	}
	return then(ns, url)
}

// load waits until the subject has loaded everything.
func (m *scaler) load() (load, error) {
	var l load
	synced, err := m.subject.await("end of the delivery", func(r report) bool { return r.Synced != 0 })
	if err != nil {
		return l, err
	}
	in, err := m.subject.written()
	if err != nil {
		return l, err
	}
	mem, err := memoryOf(m.subject.cmd.Process.Pid)
	if err != nil {
		return l, err
	}
	l = load{synced: in.At - synced.Synced, began: in.At - m.subject.began, sent: synced.Synced - m.subject.began, peak: mem.peak, settled: mem.now}
	l.did, err = m.subject.operations()
	return l, err
}

// startAgain restarts the subject in the same namespace: the table is there.
func (m *scaler) startAgain(ns *netns.NS, url string) (err error) {
	m.subject.kill()
	if m.subject, err = startSubject(ns, url); err != nil {
		return err
	}
	m.result.restart, err = m.load()
	return err
}

// changes makes all sorts of changes.
func (m *scaler) changes(ctx context.Context, n int) error {
	for _, part := range []struct {
		to   *series
		make func(context.Context, int) error
	}{
		{&m.result.first, func(ctx context.Context, _ int) error { return m.firstNumbers(ctx) }},
		{&m.result.replaced, m.replaceMany},
		{&m.result.numbered, m.numberMany},
	} {
		if err := m.counted(ctx, part.to, false, func() error { return part.make(ctx, n) }); err != nil {
			return err
		}
	}
	return nil
}

// counted takes note of the operations that changes took. Where clients may be pinned,
// some come a second later.
func (m *scaler) counted(ctx context.Context, to *series, pins bool, changes func() error) error {
	before, err := m.subject.operations()
	if err != nil {
		return err
	}
	if err := changes(); err != nil {
		return err
	}
	if pins {
		if err := m.awaitRest(ctx); err != nil {
			return err
		}
	}
	after, err := m.subject.operations()
	if err != nil {
		return err
	}
	to.did = map[string]float64{}
	for name, now := range after {
		to.did[name] = now - before[name]
	}
	return nil
}

// weigh reads the memory as it is, and as it is after a forced collection.
func (m *scaler) weigh() error {
	pid := m.subject.cmd.Process.Pid
	mem, err := memoryOf(pid)
	if err != nil {
		return err
	}
	m.result.memory.settled, m.result.memory.peak = mem.now, mem.peak
	if err := m.subject.free(); err != nil {
		return err
	}
	mem, err = memoryOf(pid)
	m.result.memory.freed = mem.now
	return err
}

// firstNumbers takes Service 1 to numbers of endpoints that nobody had, and back.
func (m *scaler) firstNumbers(ctx context.Context) error {
	const service = 1
	var discard series
	// One endpoint less first: the number that numberMany goes on with.
	m.cluster.shrink(service, 1)
	if err := m.change(ctx, &m.result.first, service, true); err != nil {
		return err
	}
	m.cluster.grow(service, 1)
	if err := m.change(ctx, &discard, service, true); err != nil {
		return err
	}
	for range firsts - 1 {
		m.cluster.grow(service, 1)
		if err := m.change(ctx, &m.result.first, service, true); err != nil {
			return err
		}
	}
	m.cluster.shrink(service, firsts-1)
	return m.change(ctx, &discard, service, true)
}

// other spreads changes over all Services.
func (m *scaler) other(i int) int { return (i*7919 + 13) % len(m.cluster.endpoints) }

func (m *scaler) replaceMany(ctx context.Context, n int) error {
	for i := range n {
		service, slot := m.other(i), i%endpointsPerService
		m.cluster.replace(service, slot)
		if err := m.change(ctx, &m.result.replaced, service, i%looked == 0); err != nil {
			return err
		}
		took, err := m.floor.replace(service, slot)
		if err != nil {
			return err
		}
		m.result.replaced.floor = append(m.result.replaced.floor, took)
	}
	return nil
}

func (m *scaler) numberMany(ctx context.Context, n int) error {
	for i := range n {
		service, write := m.other(i/2), m.floor.shrink
		if i%2 == 0 {
			m.cluster.shrink(service, 1)
		} else {
			m.cluster.grow(service, 1)
			write = m.floor.grow
		}
		if err := m.change(ctx, &m.result.numbered, service, i%looked < 2); err != nil {
			return err
		}
		took, err := write(service)
		if err != nil {
			return err
		}
		m.result.numbered.floor = append(m.result.numbered.floor, took)
		if took, err = m.floor.verdict(service); err != nil {
			return err
		}
		m.result.verdicts = append(m.result.verdicts, took)
	}
	return nil
}

// change tells the API's watchers of a Service's endpoints and waits until they are
// in the kernel, on the daemon's word; look asks the kernel, too.
func (m *scaler) change(ctx context.Context, to *series, service int, look bool) error {
	if err := ctx.Err(); err != nil {
		return err
	}
	sent, err := m.api.changed(service)
	if err != nil {
		return err
	}
	in, err := m.subject.written()
	if err != nil {
		return err
	}
	if in.Changes != 1 {
		return fmt.Errorf("the daemon wrote %d changes at once, and was told of 1; its last words:\n%s", in.Changes, m.subject.output)
	}
	to.event = append(to.event, in.At-sent)
	to.inside = append(to.inside, in.Took)
	if !look {
		return nil
	}
	m.result.verified++
	if err := m.kernel.has(m.cluster.frontends(service)); err != nil {
		return fmt.Errorf("service %d, of kind %s: %w", service, m.cluster.kindOf(service), err)
	}
	return nil
}
