package source

import (
	"fmt"
	"net/netip"
	"strings"

	corev1 "k8s.io/api/core/v1"

	"onerule/daemon/model"
)

// findings collects the notes of one object.
type findings struct {
	notes []model.Note
	last  string // the detail of the last note that fits
	more  int    // how many did not fit
}

// maxNotes bounds what one object can write to the log: a slice of the wrong
// family has a fault for each of its endpoints.
const maxNotes = 16

func (f *findings) add(reason model.Reason, field, detail string) {
	if len(f.notes) < maxNotes {
		f.notes = append(f.notes, model.Note{Reason: reason, Field: field, Detail: detail})
		f.last = detail
		return
	}
	f.more++
	f.notes[maxNotes-1].Detail = fmt.Sprintf("%s (and %d more)", f.last, f.more)
}

// names checks the names that make an object's key and later parts of comments and
// labels.
func (f *findings) names(namespace, name string) bool {
	return f.label("metadata.namespace", namespace) && f.label("metadata.name", name)
}

// label notes what is no DNS label: 1 to 63 lower case letters, digits and dashes.
func (f *findings) label(field, s string) bool {
	switch {
	case s == "":
		f.add(model.ReasonInvalidName, field, "is missing")
	case len(s) > 63:
		f.add(model.ReasonInvalidName, field, fmt.Sprintf("%s has %d characters, at most 63 can be", quote(s), len(s)))
	case !isLabel(s):
		f.add(model.ReasonInvalidName, field, quote(s)+" is not a DNS label")
	default:
		return true
	}
	return false
}

// subdomain notes what is not a sequence of DNS labels: the names of slices, nodes
// and ServiceCIDRs.
func (f *findings) subdomain(s string) bool {
	const field = "metadata.name"
	switch {
	case s == "":
		f.add(model.ReasonInvalidName, field, "is missing")
	case len(s) > 253:
		f.add(model.ReasonInvalidName, field, fmt.Sprintf("%s has %d characters, at most 253 can be", quote(s), len(s)))
	case !isSubdomain(s):
		f.add(model.ReasonInvalidName, field, quote(s)+" is not a DNS name")
	default:
		return true
	}
	return false
}

func isSubdomain(s string) bool {
	for part := range strings.SplitSeq(s, ".") {
		if !isLabel(part) {
			return false
		}
	}
	return true
}

// isLabel says whether s is of a DNS label's characters, whatever its length.
func isLabel(s string) bool {
	if s == "" || s[0] == '-' || s[len(s)-1] == '-' {
		return false
	}
	for i := range len(s) {
		c := s[i]
		if c != '-' && (c < '0' || c > '9') && (c < 'a' || c > 'z') {
			return false
		}
	}
	return true
}

// port checks the i-th port of a list and gives its protocol.
func (f *findings) port(i int, list, name string, protocol corev1.Protocol, number int32) (model.Protocol, bool) {
	if name != "" && (len(name) > 63 || !isLabel(name)) {
		f.label(fmt.Sprintf("%s[%d].name", list, i), name)
		return 0, false
	}
	if number < 1 || number > 65535 {
		f.add(model.ReasonInvalidPort, fmt.Sprintf("%s[%d].port", list, i), fmt.Sprintf("%d is not in 1..65535", number))
		return 0, false
	}
	switch protocol {
	case corev1.ProtocolTCP, "":
		return model.TCP, true
	case corev1.ProtocolUDP:
		return model.UDP, true
	case corev1.ProtocolSCTP:
		return model.SCTP, true
	}
	f.add(model.ReasonInvalidProtocol, fmt.Sprintf("%s[%d].protocol", list, i), quote(string(protocol))+" is not TCP, UDP or SCTP")
	return 0, false
}

// prefixes gives the CIDRs of a list that are good.
func (f *findings) prefixes(field string, texts []string) []netip.Prefix {
	prefixes := make([]netip.Prefix, 0, len(texts))
	for i, text := range texts {
		p, err := parsePrefix(text)
		if err != nil {
			f.add(model.ReasonInvalidAddress, fmt.Sprintf("%s[%d]", field, i), err.Error())
			continue
		}
		prefixes = append(prefixes, p)
	}
	return prefixes
}
