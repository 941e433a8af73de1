package chart

import (
	"slices"
	"testing"

	corev1 "k8s.io/api/core/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"

	"onerule/test/apiserver"
	"onerule/test/netns"
)

// Warnings are what an API server says beside its answers.
type warnings struct{ list []string }

func (w *warnings) HandleWarningHeader(_ int, _, text string) { w.list = append(w.list, text) }

func TestARealAPIServerAcceptsTheManifests(t *testing.T) {
	s := apiserver.Start(t, netns.New(t, "server"), apiserver.Options{})
	config, said := rest.CopyConfig(s.Config()), &warnings{}
	config.WarningHandler = said
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	namespace := &corev1.Namespace{ObjectMeta: metav1.ObjectMeta{Name: "kube-system"}}
	if _, err := client.CoreV1().Namespaces().Create(t.Context(), namespace, metav1.CreateOptions{}); err != nil && !apierrors.IsAlreadyExists(err) {
		t.Fatal(err)
	}
	for _, name := range []string{"onerule.yaml", "uninstall.yaml"} {
		t.Run(name, func(t *testing.T) {
			said.list = nil
			create(t, client, manifest(t, name))
			if len(said.list) > 0 {
				t.Errorf("it warns: %q", said.list)
			}
		})
	}
	t.Run("what the chart adds", func(t *testing.T) {
		o := rendered(t, helm(t), `apiServer.host="192.0.2.1"`)
		o.accounts, o.roles, o.bindings, o.sets = nil, nil, nil, nil
		delete(o.configMaps, "oneruled")
		create(t, client, o)
	})
}

// create creates objects, with the validation that kubectl asks for.
func create(t *testing.T, client kubernetes.Interface, o objects) {
	t.Helper()
	strict := metav1.CreateOptions{FieldValidation: metav1.FieldValidationStrict}
	var errs []error
	for _, x := range o.accounts {
		_, err := client.CoreV1().ServiceAccounts(x.Namespace).Create(t.Context(), x, strict)
		errs = append(errs, err)
	}
	for _, x := range o.roles {
		_, err := client.RbacV1().ClusterRoles().Create(t.Context(), x, strict)
		errs = append(errs, err)
	}
	for _, x := range o.bindings {
		_, err := client.RbacV1().ClusterRoleBindings().Create(t.Context(), x, strict)
		errs = append(errs, err)
	}
	for _, x := range o.configMaps {
		_, err := client.CoreV1().ConfigMaps(x.Namespace).Create(t.Context(), x, strict)
		errs = append(errs, err)
	}
	for _, x := range o.sets {
		_, err := client.AppsV1().DaemonSets(x.Namespace).Create(t.Context(), x, strict)
		errs = append(errs, err)
	}
	if len(errs) == 0 {
		t.Fatal("there is nothing to create")
	}
	for _, err := range slices.DeleteFunc(errs, func(err error) bool { return err == nil }) {
		t.Error(err)
	}
}
