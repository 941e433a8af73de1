package source

import (
	"context"
	"encoding/json"
	"fmt"
	"time"

	"github.com/go-logr/logr"
	corev1 "k8s.io/api/core/v1"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/apimachinery/pkg/types"
)

// Waits after a failure to tell that the network is there.
const (
	firstTell = time.Second
	lastTell  = time.Minute
)

// Available tells the cluster that pods of this node are connected. Some clouds keep pods off
// a node until somebody does: by the condition NetworkUnavailable, which they set when the
// node is new. It is told once; what passes is the plugin's to say.
type Available struct {
	Client *Client
	Node   string
	Log    logr.Logger
	// Wait is the first one after a failure; 0: a second.
	Wait time.Duration
}

// Run tells it once serving is closed, and again after failures, until ctx ends.
func (a Available) Run(ctx context.Context, serving <-chan struct{}) error {
	select {
	case <-ctx.Done():
		return nil
	case <-serving:
	}
	wait := a.Wait
	if wait == 0 {
		wait = firstTell
	}
	for said := false; ; said = true {
		err := a.tell(ctx)
		if err == nil {
			<-ctx.Done()
			return nil
		}
		if ctx.Err() == nil && !said {
			a.Log.Error(err, "the cluster is not told that the network of this node is there, trying again (install/rbac-network.yaml has the right that it takes)")
		}
		select {
		case <-ctx.Done():
			return nil
		case <-time.After(wait):
		}
		wait = min(2*wait, lastTell)
	}
}

func (a Available) tell(ctx context.Context) error {
	now := metav1.Now()
	body, err := json.Marshal(map[string]any{"status": map[string]any{"conditions": []corev1.NodeCondition{{
		Type: corev1.NodeNetworkUnavailable, Status: corev1.ConditionFalse, Reason: "OneruleServes",
		Message: "pods of this node are connected by onerule", LastHeartbeatTime: now, LastTransitionTime: now,
	}}}})
	if err != nil {
		return fmt.Errorf("spell condition: %w", err)
	}
	err = a.Client.core.Patch(types.StrategicMergePatchType).Resource("nodes").Name(a.Node).SubResource("status").
		Body(body).Do(ctx).Error()
	if err != nil {
		return fmt.Errorf("set condition NetworkUnavailable of node %s: %w", a.Node, err)
	}
	return nil
}
