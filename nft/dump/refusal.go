package dump

import "errors"

// First gives the first of the errors that a transaction gave, one for each message: they
// say the same.
func First(err error) error {
	for {
		var list interface{ Unwrap() []error }
		if !errors.As(err, &list) || len(list.Unwrap()) == 0 {
			return err
		}
		err = list.Unwrap()[0]
	}
}
