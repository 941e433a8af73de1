package install

import (
	"fmt"
	"path/filepath"
)

// Needed counts the pods' interfaces of our plugin that could not end without our list: a
// runtime without any list takes no pod down. None are if there is another list, or one that
// Uninstall brings back.
func (p Places) Needed() (int, error) {
	others, err := p.Others()
	if err != nil || len(others) > 0 {
		return 0, err
	}
	back, err := filepath.Glob(filepath.Join(p.Lists, "*"+aside))
	if err != nil {
		return 0, fmt.Errorf("look for lists that were set aside: %w", err)
	}
	if len(back) > 0 {
		return 0, nil
	}
	return p.Attached()
}
