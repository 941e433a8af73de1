package inspect

import (
	"bytes"
	"errors"
	"fmt"
	"slices"

	"golang.org/x/sys/unix"

	"onerule/nft/dump"
)

// An Element is one of a set or map, in the kernel's form.
type Element struct {
	Key, Value []byte
	KeyEnd     []byte // of an element that is a range
	Verdict    int32  // of a map of verdicts: unix.NFT_GOTO
	Chain      string // that a verdict names
	End        bool   // a range has ended here
	CatchAll   bool   // it stands for all keys that the set lacks, and has none
	Comment    string
}

// EachElement lists a set. The kernel walks it anew for each buffer that it fills, so large
// buffers make it about 60 times as fast as the 4 KiB of common libraries (9 s against
// 0.16 s for 100,000 elements). Elements are valid during the call only.
func (r *Reader) EachElement(t Table, set string, f func(Element) error) error {
	request := t.request(dump.Name(unix.NFTA_SET_ELEM_LIST_SET, set))
	err := r.List(unix.NFT_MSG_GETSETELEM, request, func(body []byte) error { return eachElement(body, f) })
	if err != nil {
		return fmt.Errorf("list set %s of table %s: %w", set, t.Name, err)
	}
	return nil
}

// Element asks for one by its key. Where the table or the set is not there, it has none.
func (r *Reader) Element(t Table, set string, key []byte) (found Element, there bool, err error) {
	list := dump.Nest(unix.NFTA_SET_ELEM_LIST_ELEMENTS, dump.Nest(unix.NFTA_LIST_ELEM, dump.Nest(unix.NFTA_SET_ELEM_KEY, dump.Attr(unix.NFTA_DATA_VALUE, key))))
	request := t.request(dump.Name(unix.NFTA_SET_ELEM_LIST_SET, set), list)
	err = r.ask(unix.NFT_MSG_GETSETELEM, request, func(body []byte) error {
		return eachElement(body, func(e Element) error {
			found, there = e.clone(), true
			return nil
		})
	})
	if errors.Is(err, unix.ENOENT) {
		return found, false, nil
	}
	if err != nil {
		return found, false, fmt.Errorf("look up in set %s of table %s: %w", set, t.Name, err)
	}
	return found, there, nil
}

func (e Element) clone() Element {
	e.Key, e.Value, e.KeyEnd = slices.Clone(e.Key), slices.Clone(e.Value), slices.Clone(e.KeyEnd)
	return e
}

func eachElement(body []byte, f func(Element) error) error {
	attrs, err := dump.Attributes(body)
	if err != nil {
		return err
	}
	return dump.EachAttr(attrs, func(kind uint16, list []byte) error {
		if kind != unix.NFTA_SET_ELEM_LIST_ELEMENTS {
			return nil
		}
		return dump.EachAttr(list, func(_ uint16, element []byte) error {
			e, err := parseElement(element)
			if err != nil {
				return err
			}
			return f(e)
		})
	})
}

// setElemKeyEnd is NFTA_SET_ELEM_KEY_END, since kernel 5.6.
const setElemKeyEnd = 10

// CatchAll is NFT_SET_ELEM_CATCHALL, since kernel 5.13: a flag of elements.
const CatchAll = 2

func parseElement(body []byte) (e Element, err error) {
	err = dump.EachAttr(body, func(kind uint16, v []byte) error {
		switch kind {
		case unix.NFTA_SET_ELEM_KEY:
			return nested(v, func(_ uint16, key []byte) { e.Key = key })
		case setElemKeyEnd:
			return nested(v, func(_ uint16, key []byte) { e.KeyEnd = key })
		case unix.NFTA_SET_ELEM_DATA:
			return e.parseData(v)
		case unix.NFTA_SET_ELEM_USERDATA:
			e.Comment = comment(v)
		case unix.NFTA_SET_ELEM_FLAGS:
			flags := dump.Number(v)
			e.End, e.CatchAll = flags&unix.NFT_SET_ELEM_INTERVAL_END != 0, flags&CatchAll != 0
		}
		return nil
	})
	return e, err
}

// comment finds what people are told in what the kernel keeps for nft: a list of type,
// length and value, of which the comment has the type 0 and ends with a zero.
func comment(userdata []byte) string {
	for len(userdata) >= 2 {
		kind, n := userdata[0], int(userdata[1])
		if n > len(userdata)-2 {
			return ""
		}
		if kind == 0 {
			return string(bytes.TrimRight(userdata[2:2+n], "\x00"))
		}
		userdata = userdata[2+n:]
	}
	return ""
}

func (e *Element) parseData(v []byte) error {
	return dump.EachAttr(v, func(kind uint16, data []byte) error {
		if kind == unix.NFTA_DATA_VALUE {
			e.Value = data
			return nil
		}
		return nested(data, func(kind uint16, part []byte) {
			switch kind {
			case unix.NFTA_VERDICT_CODE:
				e.Verdict = int32(dump.Number(part))
			case unix.NFTA_VERDICT_CHAIN:
				e.Chain = dump.Text(part)
			}
		})
	})
}
