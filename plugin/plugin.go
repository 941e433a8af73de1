// Package plugin is a CNI plugin: it wires the interfaces of a pod to its node,
// point to point and with addresses of both families, and takes them away again.
// It needs no daemon, no API server and no nft: netlink and one directory of
// small files are all. Every step may be the last before a SIGKILL, so what DEL
// needs is on disk before anything is made.
package plugin

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"strings"
	"time"

	"github.com/containernetworking/cni/pkg/types"
	"github.com/containernetworking/cni/pkg/types/create"
	"github.com/containernetworking/cni/pkg/version"
)

const newestVersion = "1.1.0"

func supportedVersions() []string { return []string{"0.3.1", "0.4.0", "1.0.0", newestVersion} }

// A Process is what a runtime gives to the plugin: its environment and its
// streams. Only results and error objects go to Stdout.
type Process struct {
	Getenv func(string) string
	Stdin  io.Reader
	Stdout io.Writer
	Stderr io.Writer
	// Now is the clock that records are stamped with.
	Now func() time.Time
	// Version is that of the program, for its about line.
	Version string

	began time.Time
	verb  string
	// sysctls is what sysctlDir says.
	sysctls string
}

// Run does what CNI_COMMAND asks for and gives the exit code.
func (p Process) Run() int {
	p.began, p.verb = p.Now(), p.Getenv("CNI_COMMAND")
	if p.verb == "" {
		p.about(p.Stderr)
		return 0
	}
	stdin, err := p.readStdin()
	if err == nil {
		err = p.dispatch(p.verb, stdin)
	}
	if err == nil {
		return 0
	}
	p.printError(err, echoVersion(stdin))
	return 1
}

func (p Process) dispatch(verb string, stdin []byte) error {
	if verb == "VERSION" {
		return p.version(stdin)
	}
	verbs := map[string]struct {
		run   func(request) error
		since string
		needs []string
	}{
		"ADD":    {p.add, "", []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"}},
		"DEL":    {p.del, "", []string{"CNI_CONTAINERID", "CNI_IFNAME"}},
		"CHECK":  {p.check, "0.4.0", []string{"CNI_CONTAINERID", "CNI_NETNS", "CNI_IFNAME"}},
		"STATUS": {p.status, "1.1.0", nil},
		"GC":     {p.gc, "1.1.0", []string{"CNI_PATH"}},
	}
	v, ok := verbs[verb]
	if !ok {
		if _, upper := verbs[strings.ToUpper(verb)]; upper || strings.EqualFold(verb, "VERSION") {
			return failure(types.ErrInvalidEnvironmentVariables, nil, "unknown CNI_COMMAND %q: it is %s", verb, strings.ToUpper(verb))
		}
		return failure(types.ErrInvalidEnvironmentVariables, nil, "unknown CNI_COMMAND %q", verb)
	}
	req, err := p.request(v.needs)
	if err != nil {
		return err
	}
	req.stdin = stdin
	if err := checkVersion(verb, stdin, v.since); err != nil {
		return err
	}
	return v.run(req)
}

// checkVersion refuses a configuration of a version that the plugin, or the verb,
// does not know.
func checkVersion(verb string, stdin []byte, since string) error {
	got, err := create.DecodeVersion(stdin)
	if err != nil {
		return failure(types.ErrDecodingFailure, err, "decode the network configuration")
	}
	if err := new(version.Reconciler).CheckRaw(got, supportedVersions()); err != nil {
		return failure(types.ErrIncompatibleCNIVersion, errors.New(err.Details()), "incompatible CNI versions")
	}
	if since == "" {
		return nil
	}
	if ok, err := version.GreaterThanOrEqualTo(got, since); err != nil || !ok {
		return failure(types.ErrIncompatibleCNIVersion, err, "%s needs a configuration of version %s or later, this is %s", verb, since, got)
	}
	return nil
}

// version prints the supported versions. The library's printer always says its
// own newest version where the specification wants the one that was asked in.
func (p Process) version(stdin []byte) error {
	out := struct {
		CNIVersion        string   `json:"cniVersion"`
		SupportedVersions []string `json:"supportedVersions"`
	}{echoVersion(stdin), supportedVersions()}
	return p.print(out)
}

func (p Process) readStdin() ([]byte, error) {
	b, err := io.ReadAll(p.Stdin)
	if err != nil {
		return nil, failure(types.ErrIOFailure, err, "read the network configuration from stdin")
	}
	return b, nil
}

// print writes v as the one thing on stdout.
func (p Process) print(v any) error {
	b, err := json.MarshalIndent(v, "", "    ")
	if err != nil {
		return failure(types.ErrInternal, err, "encode the result")
	}
	if _, err := p.Stdout.Write(append(b, '\n')); err != nil {
		return failure(types.ErrIOFailure, err, "write the result to stdout")
	}
	return nil
}

func (p Process) warn(format string, args ...any) {
	_, _ = fmt.Fprintf(p.Stderr, "onerule: "+format+"\n", args...)
}

// echoVersion gives the version that an answer to this input carries, also when
// the input could not be read.
func echoVersion(stdin []byte) string {
	var in struct {
		CNIVersion string `json:"cniVersion"`
	}
	if json.Unmarshal(stdin, &in) != nil || in.CNIVersion == "" {
		return newestVersion
	}
	return in.CNIVersion
}
