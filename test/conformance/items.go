// Package conformance lists what a CNI plugin owes to its runtime and to operators.
// make conformance shows which tests prove it; test/parity reads the tests, and has a list
// of its own for make parity.
package conformance

// An Item is a piece of what a program like ours must do, or a fault that users of such
// programs met.
type Item struct {
	ID     string
	Says   string // what a runtime, a client or an operator sees when it is right
	Report string // the public report of a fault, as owner/repository#number
	When   When
}

// When says whether an item must have a test today.
type When int

// An item is due now, comes with a later part of the project, or is about how others do
// it, which nobody sees.
const (
	Now When = iota
	Later
	Never
)

// Items lists everything, in the order in which it is shown. IDs with C are from the
// specification 1.1.0, libcni and the tests of the reference plugins; those with D are
// faults that users of CNI plugins and node agents reported.
func Items() []Item {
	var all []Item
	for _, part := range [][]Item{processItems(), versionItems(), addItems(), removalItems(), checkItems(), sweepItems(), fileItems(), faults()} {
		all = append(all, part...)
	}
	return all
}

func processItems() []Item {
	return []Item{
		{ID: "C1", Says: "six verbs; an unknown one is code 4 and a non-zero exit"},
		{ID: "C2", Says: "a container ID that is none is code 4, and nothing is done"},
		{ID: "C3", Says: "the interface gets exactly the name that was asked for, or code 4"},
		{ID: "C4", Says: "the namespace is required for ADD and CHECK only"},
		{ID: "C5", Says: "CNI_PATH is required for GC only"},
		{ID: "C6", Says: "all variables that are missing are named in one error"},
		{ID: "C7", Says: "input that is no JSON is code 6, a name that is none code 7"},
		{ID: "C8", Says: "stdout holds the result or the error object, and nothing else"},
		{ID: "C9", Says: "an error has cniVersion, code and message, and a non-zero exit"},
		{ID: "C10", Says: "the log is bounded and holds up nothing"},
		{ID: "C11", Says: "error codes as the specification has them, ours from 100"},
		{ID: "C12", Says: "without a verb it says on stderr what it is, and exits with 0"},
		{ID: "C13", Says: "CNI_ARGS: pairs; unknown keys are errors unless IgnoreUnknown; may be absent"},
		{ID: "C14", Says: "the plugin's own namespace is refused before anything is done"},
		{ID: "C15", Says: "killed at any moment it leaves nothing that DEL or GC can't remove"},
		{ID: "C16", Says: "more environment does no harm"},
		{ID: "C17", Says: "the binary is replaced while it runs, and no call fails"},
	}
}

func versionItems() []Item {
	return []Item{
		{ID: "C18", Says: "VERSION echoes cniVersion and lists ours, also without input"},
		{ID: "C19", Says: "a version that is not supported is code 1; 0.3.1 to 1.1.0 are"},
		{ID: "C20", Says: "the result is of the version that was asked for"},
		{ID: "C21", Says: "CHECK before 0.4.0, GC and STATUS before 1.1.0 are code 1"},
		{ID: "C22", Says: "a list names 1.0.0 and, in cniVersions, all: each runtime finds one"},
		{ID: "C23", Says: "libcni's validation passes for every version"},
	}
}

func addItems() []Item {
	return []Item{
		{ID: "C24", Says: "ADD makes the interface; one of that name that is there is an error, and stays"},
		{ID: "C25", Says: "prevResult is extended, nothing of it is lost"},
		{ID: "C26", Says: "the result has both ends, addresses with gateway, installed routes, DNS"},
		{ID: "C27", Says: "the same attachment twice is an error and takes no second address"},
		{ID: "C28", Says: "an ADD that fails takes back all that it did"},
		{ID: "C29", Says: "two interfaces of one container work, and go one by one"},
		{ID: "C30", Says: "an address that was asked for is given, or ADD fails"},
		{ID: "C31", Says: "a MAC that was asked for is given, a stable one otherwise"},
		{ID: "C32", Says: "addresses can be bound right after ADD"},
		{ID: "C33", Says: "the MTU is in the result, and forwarding is on"},
		{ID: "C34", Says: "capabilities are obeyed, unknown ones are passed over"},
	}
}

func removalItems() []Item {
	return []Item{
		{ID: "C35", Says: "DEL of what is gone, partly or wholly, succeeds, as often as it is called"},
		{ID: "C36", Says: "DEL without a namespace removes everything else"},
		{ID: "C37", Says: "DEL needs no prevResult: it knows by itself"},
		{ID: "C38", Says: "DEL frees the address last"},
		{ID: "C39", Says: "DEL of a list goes through, so that others can clean up"},
		{ID: "C40", Says: "code 3 tells that no clean-up is needed: DEL says it by 0"},
		{ID: "C41", Says: "DEL of what never was, in parallel, and while the namespace goes"},
		{ID: "C42", Says: "DEL without daemon, API and /run, with a full disk, with an older configuration"},
	}
}

func checkItems() []Item {
	return []Item{
		{ID: "C43", Says: "CHECK wants prevResult, gives the same answer each time, bears with chained changes"},
		{ID: "C44", Says: "CHECK names each thing that is missing or altered, on the node, in the pod, in the store"},
		{ID: "C45", Says: "CHECK is silent, repairs nothing, and can run in parallel"},
		{ID: "C46", Says: "STATUS is silent when ADD would work; other verbs work after an error"},
		{ID: "C47", Says: "STATUS tells about ranges, pool, store, forwarding, routes; passing conditions not at once"},
	}
}

func sweepItems() []Item {
	return []Item{
		{ID: "C48", Says: "GC removes what is not in the list, of this network only, on after errors"},
		{ID: "C49", Says: "GC spares attachments that are younger than itself"},
		{ID: "C50", Says: "GC: a list, an empty list, null and no list mean three things"},
		{ID: "C51", Says: "libcni's GC, which calls DEL first, ends well"},
		{ID: "C52", Says: "the daemon sweeps where the runtime calls no GC"},
	}
}

func fileItems() []Item {
	return []Item{
		{ID: "C53", Says: "delegates are found by CNI_PATH, and get everything"},
		{ID: "C54", Says: "a lost or torn cache of results, or of ours, is borne"},
		{ID: "C55", Says: "the list of plugins lands by a rename, from a name that no runtime reads"},
		{ID: "C56", Says: "no folder is made where runtimes look for plugins of a network"},
		{ID: "C57", Says: "addresses: owner on record, never network, gateway or broadcast, exhaustion names the ranges"},
		{ID: "C58", Says: "hostPort: TCP, UDP, SCTP; one that is taken is refused; parallel removals"},
		{ID: "C59", Says: "others chain behind, and what we made stays as it is"},
		{ID: "C60", Says: "cnitool drives every verb"},
	}
}
