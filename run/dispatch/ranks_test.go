//go:build !windows

package dispatch

import (
	"bytes"
	"flag"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"go.yaml.in/yaml/v3"

	"apr/internal/contracttest"
	"apr/internal/launcher"
)

var update = flag.Bool("update", false, "rewrite testdata")

// golden compares a text with a file of testdata.
func golden(t *testing.T, name string, got []byte) {
	t.Helper()
	path := filepath.Join("testdata", name)
	if *update {
		if err := os.WriteFile(path, got, 0o600); err != nil {
			t.Fatal(err)
		}
	}
	want, err := os.ReadFile(path)
	if err != nil || !bytes.Equal(got, want) {
		t.Errorf("%s differs (%v); got\n%s", path, err, got)
	}
}

// ranksJob is a run of 3 machines with 8 ranks each.
func ranksJob() Job {
	return Job{Ticket: "apr-1", Command: []string{"apr", "distill", "teacher", "--backend=cuda", "--output=runs/r"},
		Env: []string{"A=$(b)"}, Dir: "/runs", RunDir: "runs/r", Grace: 30 * time.Second, Limit: time.Hour, GPUs: 8,
		Image: "r/apr:1", Claim: "models", Secret: "keys", Machines: 3, Ranks: 8}
}

// TestRanksManifest: the manifest of an Indexed Job says how many pods there are, and names them by a headless service;
// what a pod finds in its environment makes it the ranks that it is.
func TestRanksManifest(t *testing.T) {
	text, err := ranksJob().Manifest()
	if err != nil {
		t.Fatal(err)
	}
	golden(t, "ranks.k8s.yaml", text)
	dec := yaml.NewDecoder(bytes.NewReader(text))
	var service struct {
		Kind     string
		Metadata struct{ Name string }
		Spec     struct {
			ClusterIP string `yaml:"clusterIP"`
			Selector  map[string]string
			Ports     []struct{ Port int }
		}
	}
	var job struct {
		Spec struct {
			Completions, Parallelism int
			Template                 struct {
				Metadata struct{ Labels map[string]string }
				Spec     struct {
					Subdomain  string
					Containers []struct {
						Env []struct{ Name, Value string }
					}
				}
			}
		}
	}
	if err := dec.Decode(&service); err != nil {
		t.Fatal(err)
	}
	if err := dec.Decode(&job); err != nil {
		t.Fatal(err)
	}
	pod := job.Spec.Template
	if service.Kind != "Service" || service.Spec.ClusterIP != "None" || pod.Spec.Subdomain != service.Metadata.Name ||
		job.Spec.Completions != 3 || job.Spec.Parallelism != 3 {
		t.Errorf("%+v\n%+v", service, job)
	}
	for name, value := range service.Spec.Selector {
		if pod.Metadata.Labels[name] != value {
			t.Errorf("the service selects %s=%s, the pods have %v", name, value, pod.Metadata.Labels)
		}
	}
	for index, rank := range []string{"0", "1", "2"} {
		m, err := launcher.Meet(func(name string) string {
			for _, e := range pod.Spec.Containers[0].Env {
				if e.Name == name {
					return e.Value
				}
			}
			return map[string]string{"JOB_COMPLETION_INDEX": rank}[name]
		})
		if err != nil || m.Nodes != 3 || m.Node != index || m.PerNode != 8 || m.Addr != "apr-1-0.apr-1:29400" {
			t.Errorf("pod %d: %+v, %v", index, m, err)
		}
		contracttest.Cases(t, 1)
	}
	j := ranksJob()
	if j.Machines = 1; strings.Contains(must(t, j), "Service") || strings.Contains(must(t, j), "APR_JOB") {
		t.Error("one machine has a service, or a count")
	}
}

// TestRanksJobSet: the manifest of a JobSet passes a pod's labels on, which make it the ranks that it is: at the name
// that the set's own service gives the first pod, and after a restart of another generation.
func TestRanksJobSet(t *testing.T) {
	j := ranksJob()
	j.Set = true
	text := must(t, j)
	golden(t, "ranks.jobset.yaml", []byte(text))
	var set struct {
		Kind     string
		Metadata struct{ Name string }
		Spec     struct {
			Network struct {
				EnableDNSHostnames bool `yaml:"enableDNSHostnames"`
			}
			ReplicatedJobs []struct {
				Name     string
				Replicas int
				Template struct {
					Spec struct {
						Completions  int
						BackoffLimit int `yaml:"backoffLimit"`
						Template     struct {
							Spec struct {
								Subdomain  string
								Containers []struct {
									Env []struct {
										Name, Value string
										ValueFrom   struct {
											FieldRef struct {
												FieldPath string `yaml:"fieldPath"`
											} `yaml:"fieldRef"`
										} `yaml:"valueFrom"`
									}
								}
							}
						}
					}
				}
			} `yaml:"replicatedJobs"`
		}
	}
	if err := yaml.Unmarshal([]byte(text), &set); err != nil {
		t.Fatal(err)
	}
	r := set.Spec.ReplicatedJobs[0]
	pod := r.Template.Spec.Template.Spec
	if set.Kind != "JobSet" || !set.Spec.Network.EnableDNSHostnames || r.Replicas != 1 ||
		r.Template.Spec.Completions != 3 || r.Template.Spec.BackoffLimit != 0 || pod.Subdomain != "" {
		t.Errorf("%+v", set)
	}
	const of = "jobset.sigs.k8s.io/"
	for index, n := range []string{"0", "1", "2"} {
		labels := map[string]string{of + "jobset-name": set.Metadata.Name, of + "replicatedjob-name": r.Name,
			of + "replicatedjob-replicas": "1", of + "job-index": "0", of + "restart-attempt": "4"}
		m, err := launcher.Meet(func(name string) string {
			for _, e := range pod.Containers[0].Env {
				if e.Name == name && e.Value != "" {
					return e.Value
				} else if e.Name == name {
					label := strings.TrimSuffix(strings.TrimPrefix(e.ValueFrom.FieldRef.FieldPath, "metadata.labels['"), "']")
					return labels[label]
				}
			}
			return map[string]string{"JOB_COMPLETION_INDEX": n}[name]
		})
		if err != nil || m.Nodes != 3 || m.Node != index || m.PerNode != 8 || m.Generation != 4 ||
			m.Addr != "apr-1-ranks-0-0.apr-1:29400" {
			t.Errorf("pod %d: %+v, %v", index, m, err)
		}
		contracttest.Cases(t, 1)
	}
	if j.PodsOf() != "job/apr-1-ranks-0" || ranksJob().PodsOf() != "job/apr-1" {
		t.Errorf("logs of %s", j.PodsOf())
	}
}

func must(t *testing.T, j Job) string {
	t.Helper()
	text, err := j.Manifest()
	if err != nil {
		t.Fatal(err)
	}
	return string(text)
}

// TestRanksSlurm executes the script with a srun that starts the tasks of this node, as a batch shell would.
func TestRanksSlurm(t *testing.T) {
	j := ranksJob()
	golden(t, "ranks.slurm.sh", []byte(j.SlurmScript()))
	dir := lay(t, map[string]string{
		"recorder": recorder,
		"srun":     `shift; SLURM_STEP_NUM_TASKS=24 SLURM_PROCID=0 exec "$@"` + "\n",
	})
	k := job(dir)
	k.Machines, k.Ranks = 3, 8
	if err := os.MkdirAll(k.Dir, 0o755); err != nil {
		t.Fatal(err)
	}
	if out, code := shell(t, "bash", k.SlurmScript(), dir, "SLURM_JOB_ID=1"); code != 0 {
		t.Fatalf("exit %d: %s", code, out)
	}
	recorded(t, k)
	k.Machines = 1
	if strings.Contains(k.SlurmScript(), "srun") {
		t.Error("one machine has a step")
	}
}

// TestStopRanks: the service of several pods goes with the job.
func TestStopRanks(t *testing.T) {
	s := Started{Scheduler: "k8s", Ticket: "apr-1"}
	if got := s.deleteJob(0); slices.Contains(got, "job,service") {
		t.Errorf("%q", got)
	}
	s.Set, s.Pods = true, true
	if got := s.deleteJob(0); got[2] != "jobset" || got[len(got)-1] != "apr-1" {
		t.Errorf("%q", got)
	}
	s.Set, s.Pods = false, true
	if got := s.deleteJob(0); got[2] != "job,service" || got[len(got)-1] != "apr-1" {
		t.Errorf("%q", got)
	}
}
