package config

import (
	"fmt"
	"strconv"
	"strings"

	"k8s.io/apimachinery/pkg/util/validation/field"
	"k8s.io/component-base/logs"
	logsapi "k8s.io/component-base/logs/api/v1"
	_ "k8s.io/component-base/logs/json/register" // the format json is to be known wherever settings are checked
)

// logging checks the part that the logging library knows best.
func (r *resolver) logging(values map[string]bool) {
	of, err := loggingGates(values)
	if err != nil {
		r.errs = append(r.errs, err)
		return
	}
	for _, e := range logsapi.Validate(&r.c.Logging, of, field.NewPath("logging")) {
		r.wrong(e.Field, "%s", lowerFirst(e.ErrorBody()))
	}
}

func lowerFirst(text string) string {
	if text == "" {
		return text
	}
	return strings.ToLower(text[:1]) + text[1:]
}

// ApplyLogging sets format, verbosity and buffers of all logging. A process can do so
// once: the library knows no second time.
func (s Settings) ApplyLogging() error {
	of, err := loggingGates(s.Gates)
	if err != nil {
		return err
	}
	logs.InitLogs()
	if err := logsapi.ValidateAndApplyAsField(&s.Config.Logging, of, field.NewPath("logging")); err != nil {
		return fmt.Errorf("set up logging: %w", err)
	}
	return nil
}

// ApplyVerbosity sets how much is logged, at any time.
func (s Settings) ApplyVerbosity() error {
	level := uint64(s.Config.Logging.Verbosity)
	if _, err := logs.GlogSetter(strconv.FormatUint(level, 10)); err != nil {
		return fmt.Errorf("set verbosity of logging to %d: %w", level, err)
	}
	return nil
}
