package plan

import (
	"net/netip"
	"reflect"
	"testing"

	"onerule/daemon/model"
)

// A field that equality leaves out would be a change that is never written.
func TestDecisionsDifferInEveryField(t *testing.T) {
	eachFieldDiffers(t, Decision.equal)
}

func TestAffinitiesDifferInEveryField(t *testing.T) {
	eachFieldDiffers(t, Affinity.equal)
}

func eachFieldDiffers[T any](t *testing.T, equal func(T, T) bool) {
	t.Helper()
	var zero T
	if !equal(zero, zero) {
		t.Error("a value is not equal to itself")
	}
	for i := range reflect.TypeFor[T]().NumField() {
		var other T
		field := reflect.ValueOf(&other).Elem().Field(i)
		field.Set(something(t, field.Type()))
		if equal(zero, other) || equal(other, zero) {
			t.Errorf("%T: values with another %s are equal", zero, reflect.TypeFor[T]().Field(i).Name)
		}
	}
}

// something gives a value that is not the zero value.
func something(t *testing.T, of reflect.Type) reflect.Value {
	t.Helper()
	for _, v := range []any{
		true, "a", uint32(1), NodePort, Frontend{Port: 80}, ServicePort{Service: model.Name{Name: "a"}},
		[]netip.AddrPort{netip.MustParseAddrPort("10.0.0.1:80")}, []netip.Prefix{netip.MustParsePrefix("10.0.0.0/8")},
	} {
		if reflect.TypeOf(v) == of {
			return reflect.ValueOf(v)
		}
	}
	t.Fatalf("this test knows no value of type %s", of)
	return reflect.Value{}
}
