package inspect

import (
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"net"
	"net/http"
	"net/url"
	"os"

	"golang.org/x/sys/unix"
)

// ErrNoDaemon says that nobody answers at a socket.
var ErrNoDaemon = errors.New("no daemon answers")

// A Client asks the daemon behind a socket. It is a Daemon.
type Client struct{ Socket string }

var _ Daemon = Client{}

// Status asks what the daemon and its tables are like.
func (c Client) Status(ctx context.Context) (s Status, err error) {
	return s, c.ask(ctx, "status", nil, &s)
}

// Hits asks what was counted.
func (c Client) Hits(ctx context.Context) (h Hits, err error) {
	return h, c.ask(ctx, "hits", nil, &h)
}

// Services asks what is decided about all Services, or those with a name.
func (c Client) Services(ctx context.Context, name string, each func(Service) error) error {
	return c.read(ctx, "services", url.Values{"name": {name}}, func(from *json.Decoder) error {
		for {
			var s Service
			if err := from.Decode(&s); errors.Is(err, io.EOF) {
				return nil
			} else if err != nil {
				return fmt.Errorf("read the daemon's answer: %w", err)
			}
			if err := each(s); err != nil {
				return err
			}
		}
	})
}

// Explain asks what becomes of a packet.
func (c Client) Explain(ctx context.Context, q Query) (e Explanation, err error) {
	v := url.Values{"to": {q.To.String()}, "protocol": {q.Protocol}, "in": {q.In}}
	if q.From.IsValid() {
		v.Set("from", q.From.String())
	}
	return e, c.ask(ctx, "explain", v, &e)
}

// Diff asks what the daemon would change.
func (c Client) Diff(ctx context.Context) (d Diff, err error) {
	return d, c.ask(ctx, "diff", nil, &d)
}

func (c Client) ask(ctx context.Context, what string, v url.Values, into any) error {
	return c.read(ctx, what, v, func(from *json.Decoder) error {
		if err := from.Decode(into); err != nil {
			return fmt.Errorf("read the daemon's answer: %w", err)
		}
		return nil
	})
}

// read asks a question and has its answer read.
func (c Client) read(ctx context.Context, what string, v url.Values, answer func(*json.Decoder) error) error {
	transport := &http.Transport{DialContext: func(ctx context.Context, _, _ string) (net.Conn, error) {
		return (&net.Dialer{Timeout: knock}).DialContext(ctx, "unix", c.Socket)
	}}
	defer transport.CloseIdleConnections()
	request, err := http.NewRequestWithContext(ctx, http.MethodGet, "http://oneruled/v1/"+what+"?"+v.Encode(), nil)
	if err != nil {
		return fmt.Errorf("make the question: %w", err)
	}
	response, err := (&http.Client{Transport: transport, Timeout: 2 * patience}).Do(request)
	if err != nil {
		return c.unheard(err)
	}
	defer func() { _ = response.Body.Close() }()
	if response.StatusCode != http.StatusOK {
		var r Refusal
		if err := json.NewDecoder(response.Body).Decode(&r); err != nil || r.Error == "" {
			return fmt.Errorf("the daemon does not know the question %q: it may be of another version (%s)", what, response.Status)
		}
		return errors.New(r.Error)
	}
	return answer(json.NewDecoder(response.Body))
}

// unheard says why there is no answer.
func (c Client) unheard(err error) error {
	switch {
	case errors.Is(err, os.ErrNotExist):
		return fmt.Errorf("%w at %s: no such socket. Is oneruled running here, and with the same --socket?", ErrNoDaemon, c.Socket)
	case errors.Is(err, unix.ECONNREFUSED) && !isSocket(c.Socket):
		return fmt.Errorf("--socket %s: it is no socket", c.Socket)
	case errors.Is(err, unix.ECONNREFUSED):
		return fmt.Errorf("%w at %s: the one that made the socket has ended", ErrNoDaemon, c.Socket)
	case errors.Is(err, os.ErrPermission):
		return fmt.Errorf("the socket %s is not for this user: ask as root", c.Socket)
	}
	return fmt.Errorf("ask the daemon at %s: %w", c.Socket, err)
}

func isSocket(path string) bool {
	info, err := os.Stat(path)
	return err == nil && info.Mode().Type() == os.ModeSocket
}
