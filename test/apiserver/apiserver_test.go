package apiserver_test

import (
	"bufio"
	"context"
	"fmt"
	"net"
	"net/netip"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"syscall"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
	corev1 "k8s.io/api/core/v1"
	discoveryv1 "k8s.io/api/discovery/v1"
	apierrors "k8s.io/apimachinery/pkg/api/errors"
	metav1 "k8s.io/apimachinery/pkg/apis/meta/v1"
	"k8s.io/client-go/kubernetes"
	"k8s.io/client-go/rest"
	"k8s.io/client-go/tools/clientcmd"

	"onerule/test/apiserver"
	"onerule/test/netns"
)

func TestServiceAndSliceReadBack(t *testing.T) {
	ns := netns.New(t, "cluster")
	s := apiserver.Start(t, ns, apiserver.Options{ServiceCIDRs: []netip.Prefix{
		netip.MustParsePrefix("10.96.0.0/16"), netip.MustParsePrefix("fd00:96::/112"),
	}})
	client := clientOf(t, s.Config())
	ctx := t.Context()
	createService(t, client)
	createSlice(t, client)

	t.Run("a Service gets a ClusterIP of each family from the ranges", func(t *testing.T) {
		got, err := client.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if len(got.Spec.ClusterIPs) != 2 || !strings.HasPrefix(got.Spec.ClusterIPs[0], "10.96.") || !strings.HasPrefix(got.Spec.ClusterIPs[1], "fd00:96::") {
			t.Errorf("got ClusterIPs %v, want one of 10.96.0.0/16 and one of fd00:96::/112", got.Spec.ClusterIPs)
		}
	})
	t.Run("an EndpointSlice keeps its endpoints", func(t *testing.T) {
		got, err := client.DiscoveryV1().EndpointSlices("default").Get(ctx, "web-1", metav1.GetOptions{})
		if err != nil {
			t.Fatal(err)
		}
		if diff := cmp.Diff([]string{"10.244.1.4"}, got.Endpoints[0].Addresses); diff != "" {
			t.Errorf("addresses (-want +got):\n%s", diff)
		}
	})
	t.Run("the server's own Service has its address", func(t *testing.T) {
		eventually(t, func() error {
			got, err := client.DiscoveryV1().EndpointSlices("default").Get(ctx, "kubernetes", metav1.GetOptions{})
			if err != nil {
				return err
			}
			if diff := cmp.Diff([]string{"198.51.100.1"}, got.Endpoints[0].Addresses); diff != "" {
				return fmt.Errorf("addresses (-want +got):\n%s", diff)
			}
			return nil
		})
	})
	t.Run("a kubeconfig of kube-proxy may read Services and write none", func(t *testing.T) {
		file, err := s.KubeconfigOf("system:kube-proxy")
		if err != nil {
			t.Fatal(err)
		}
		proxy := clientOf(t, inNamespace(t, s, file))
		if _, err := proxy.CoreV1().Services("").List(ctx, metav1.ListOptions{}); err != nil {
			t.Errorf("list: %v", err)
		}
		if err := proxy.CoreV1().Services("default").Delete(ctx, "web", metav1.DeleteOptions{}); !apierrors.IsForbidden(err) {
			t.Errorf("got error %v, want forbidden", err)
		}
	})
	t.Run("it is reached in its namespace and in no other", func(t *testing.T) {
		dial := func(ns *netns.NS) error {
			return ns.Do(func() error {
				conn, err := net.DialTimeout("tcp", "198.51.100.1:6443", time.Second)
				if err != nil {
					return err
				}
				return conn.Close()
			})
		}
		if err := dial(ns); err != nil {
			t.Error(err)
		}
		if dial(netns.New(t, "other")) == nil {
			t.Error("the API answers in another namespace")
		}
	})
	t.Run("what it stored outlives an outage", func(t *testing.T) {
		s.Stop()
		if _, err := client.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{}); err == nil {
			t.Error("the stopped server answers")
		}
		if err := s.Start(ctx); err != nil {
			t.Fatal(err)
		}
		if _, err := client.CoreV1().Services("default").Get(ctx, "web", metav1.GetOptions{}); err != nil {
			t.Error(err)
		}
		if err := s.Start(ctx); err == nil {
			t.Error("a second start gave no error")
		}
	})
}

func TestServerOfIPv6AtAGivenAddress(t *testing.T) {
	ns := netns.New(t, "cluster")
	ns.Addr(t, "lo", "2001:db8:1::5/128")
	s := apiserver.Start(t, ns, apiserver.Options{
		ServiceCIDRs: []netip.Prefix{netip.MustParsePrefix("fd00:96::/112")},
		Address:      netip.MustParseAddr("2001:db8:1::5"),
	})
	if got, want := s.Config().Host, "https://[2001:db8:1::5]:6443"; got != want {
		t.Errorf("got host %s, want %s", got, want)
	}
	createService(t, clientOf(t, s.Config()))
}

func TestABadArgumentIsNamed(t *testing.T) {
	_, err := apiserver.Open(t.Context(), netns.New(t, "cluster"), t.TempDir(), apiserver.Options{Args: []string{"--no-such-flag"}})
	if err == nil || !strings.Contains(err.Error(), "no-such-flag") {
		t.Errorf("got error %v, want one that names the flag", err)
	}
}

// TestProgramsDieWithTheirParent runs this test's own binary, lets it start the
// programs, and kills it.
func TestProgramsDieWithTheirParent(t *testing.T) {
	const child = "ONERULE_TEST_APISERVER_CHILD"
	ns := netns.New(t, "cluster")
	if os.Getenv(child) != "" {
		if _, err := apiserver.Open(t.Context(), ns, os.Getenv(child), apiserver.Options{}); err != nil {
			t.Fatal(err)
		}
		fmt.Println("ready")
		select {}
	}
	dir := t.TempDir()
	ctx, cancel := context.WithTimeout(t.Context(), 2*time.Minute)
	defer cancel()
	cmd := exec.CommandContext(ctx, os.Args[0], "-test.run=^"+t.Name()+"$")
	cmd.Env = append(os.Environ(), child+"="+dir)
	out, err := cmd.StdoutPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	for said := bufio.NewScanner(out); said.Scan() && said.Text() != "ready"; {
		t.Log(said.Text())
	}
	if got := processesNaming(t, dir); len(got) != 2 {
		t.Errorf("got processes %v before the kill, want etcd and kube-apiserver", got)
	}
	if err := cmd.Process.Kill(); err != nil {
		t.Fatal(err)
	}
	_ = cmd.Wait() // killed
	t.Cleanup(func() {
		for _, pid := range processesNaming(t, dir) {
			_ = syscall.Kill(pid, syscall.SIGKILL)
		}
	})
	eventually(t, func() error {
		if left := processesNaming(t, dir); len(left) > 0 {
			return fmt.Errorf("processes %v outlived their parent", left)
		}
		return nil
	})
}

// processesNaming finds the processes, other than ours, with a text among their
// arguments.
func processesNaming(t *testing.T, text string) []int {
	t.Helper()
	files, err := filepath.Glob("/proc/[0-9]*/cmdline")
	if err != nil {
		t.Fatal(err)
	}
	var found []int
	for _, f := range files {
		line, err := os.ReadFile(f)
		if err != nil || !strings.Contains(string(line), text) {
			continue // err: it has just ended
		}
		pid, err := strconv.Atoi(filepath.Base(filepath.Dir(f)))
		if err != nil {
			t.Fatal(err)
		}
		found = append(found, pid)
	}
	return found
}

func clientOf(t *testing.T, config *rest.Config) *kubernetes.Clientset {
	t.Helper()
	client, err := kubernetes.NewForConfig(config)
	if err != nil {
		t.Fatal(err)
	}
	return client
}

// inNamespace loads a kubeconfig for use from this process.
func inNamespace(t *testing.T, s *apiserver.Server, file string) *rest.Config {
	t.Helper()
	config, err := clientcmd.BuildConfigFromFlags("", file)
	if err != nil {
		t.Fatal(err)
	}
	config.Dial = s.Config().Dial
	return config
}

// eventually tries for some seconds until f has no error.
func eventually(t *testing.T, f func() error) {
	t.Helper()
	again := time.NewTicker(50 * time.Millisecond)
	defer again.Stop()
	deadline := time.After(15 * time.Second)
	for {
		err := f()
		if err == nil {
			return
		}
		select {
		case <-again.C:
		case <-deadline:
			t.Error(err)
			return
		}
	}
}

func createService(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	families := corev1.IPFamilyPolicyPreferDualStack
	_, err := client.CoreV1().Services("default").Create(t.Context(), &corev1.Service{
		ObjectMeta: metav1.ObjectMeta{Name: "web"},
		Spec: corev1.ServiceSpec{
			IPFamilyPolicy: &families,
			Ports:          []corev1.ServicePort{{Name: "http", Port: 80, Protocol: corev1.ProtocolTCP}},
		},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}

func createSlice(t *testing.T, client kubernetes.Interface) {
	t.Helper()
	name, port := "http", int32(8080)
	_, err := client.DiscoveryV1().EndpointSlices("default").Create(t.Context(), &discoveryv1.EndpointSlice{
		ObjectMeta:  metav1.ObjectMeta{Name: "web-1", Labels: map[string]string{discoveryv1.LabelServiceName: "web"}},
		AddressType: discoveryv1.AddressTypeIPv4,
		Endpoints:   []discoveryv1.Endpoint{{Addresses: []string{"10.244.1.4"}}},
		Ports:       []discoveryv1.EndpointPort{{Name: &name, Port: &port}},
	}, metav1.CreateOptions{})
	if err != nil {
		t.Fatal(err)
	}
}
