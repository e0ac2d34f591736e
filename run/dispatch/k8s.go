package dispatch

import (
	"fmt"
	"slices"
	"strings"

	"go.yaml.in/yaml/v3"

	"apr/internal/launcher"
)

// Kubectl returns the arguments of kubectl that submit a manifest given on stdin.
func (j Job) Kubectl() []string { return []string{"kubectl", "apply", "-f", "-"} }

// PodsOf names the Job of Kubernetes as kubectl logs wants it.
func (j Job) PodsOf() string {
	if j.Set {
		return "job/" + j.Ticket + "-" + replicatedJob + "-0"
	}
	return "job/" + j.Ticket
}

// Exit codes of the command as a Job of Kubernetes sees them.
var (
	// stopped by a signal with a checkpoint: another pod goes on
	resumableCodes = []int{20}
	// what another attempt would meet again: bad input, what is not built, divergence, want of memory
	finalCodes = []int{2, 3, 4, 5, 6, 9, 21, 23, 24, 25}
)

type (
	m    = map[string]any
	pair struct {
		Name      string `yaml:"name"`
		Value     string `yaml:"value,omitempty"`
		ValueFrom m      `yaml:"valueFrom,omitempty"`
	}
	manifest struct {
		APIVersion string  `yaml:"apiVersion"`
		Kind       string  `yaml:"kind"`
		Metadata   m       `yaml:"metadata"`
		Spec       jobSpec `yaml:"spec"`
	}
	jobSpec struct {
		CompletionMode   string `yaml:"completionMode"`
		Completions      int    `yaml:"completions"`
		Parallelism      int    `yaml:"parallelism"`
		BackoffLimit     int    `yaml:"backoffLimit"`
		PodFailurePolicy m      `yaml:"podFailurePolicy"`
		Template         struct {
			Metadata m       `yaml:"metadata"`
			Spec     podSpec `yaml:"spec"`
		} `yaml:"template"`
	}
	set struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   m      `yaml:"metadata"`
		Spec       struct {
			Network        m            `yaml:"network"`
			FailurePolicy  m            `yaml:"failurePolicy"`
			ReplicatedJobs []replicated `yaml:"replicatedJobs"`
		} `yaml:"spec"`
	}
	replicated struct {
		Name     string `yaml:"name"`
		Replicas int    `yaml:"replicas"`
		Template struct {
			Metadata m       `yaml:"metadata"`
			Spec     jobSpec `yaml:"spec"`
		} `yaml:"template"`
	}
	service struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   m      `yaml:"metadata"`
		Spec       m      `yaml:"spec"`
	}
	podSpec struct {
		RestartPolicy string      `yaml:"restartPolicy"`
		Subdomain     string      `yaml:"subdomain,omitempty"`
		Grace         int64       `yaml:"terminationGracePeriodSeconds"`
		Containers    []container `yaml:"containers"`
		Volumes       []m         `yaml:"volumes"`
	}
	container struct {
		Name       string   `yaml:"name"`
		Image      string   `yaml:"image"`
		WorkingDir string   `yaml:"workingDir"`
		Command    []string `yaml:"command"`
		Args       []string `yaml:"args"`
		Env        []pair   `yaml:"env,omitempty"`
		EnvFrom    []m      `yaml:"envFrom,omitempty"`
		Resources  m        `yaml:"resources,omitempty"`
		Mounts     []m      `yaml:"volumeMounts"`
	}
)

// literal protects a text from Kubernetes, which replaces $(NAME) in commands, arguments and values, and reads $$ as $.
func literal(s string) string { return strings.ReplaceAll(s, "$", "$$") }

// rankPort is where rank 0 of several pods listens.
const rankPort = 29400

// headless is the service that gives the pods of a Job names: TICKET-INDEX.TICKET. Names are there before pods are
// ready, since the ranks of a run wait for each other.
func (j Job) headless(labels m) service {
	return service{"v1", "Service", m{"name": j.Ticket, "labels": labels}, m{"clusterIP": "None",
		"publishNotReadyAddresses": true, "selector": m{"apr/ticket": j.Ticket},
		"ports": []m{{"name": "ranks", "port": rankPort}}}}
}

// Manifest is an Indexed Job of one pod, or one for each part or machine; with several machines, and a headless service
// that names the pods. Kubernetes gives a pod its number and not how many there are, so that the manifest says it. A
// pod that is stopped with a checkpoint is replaced without counting as a failure; what another attempt would meet
// again fails the Job at once. With Set it is a JobSet of that Job.
func (j Job) Manifest() ([]byte, error) {
	labels := m{"app.kubernetes.io/name": "apr", "apr/ticket": j.Ticket}
	pods := max(j.Parts, j.Machines, 1)
	spec := j.jobSpec(pods, labels)
	if j.Set {
		return j.jobSet(spec, pods, labels)
	}
	if j.several() {
		spec.Template.Spec.Subdomain = j.Ticket
	}
	second, err := asYAML(manifest{"batch/v1", "Job", m{"name": j.Ticket, "labels": labels}, spec})
	if err != nil || !j.several() {
		return second, err
	}
	first, err := asYAML(j.headless(labels))
	return slices.Concat(first, []byte("---\n"), second), err
}

// replicatedJob names the Job of a JobSet.
const replicatedJob = "ranks"

// jobSet is a JobSet of one Job. Its controller makes the headless service, and names the pods
// TICKET-ranks-0-INDEX.TICKET. When a pod fails, all are started anew, under a number that ranks take for their
// generation; what another attempt would meet again fails the set.
func (j Job) jobSet(spec jobSpec, pods int, labels m) ([]byte, error) {
	var s set
	s.APIVersion, s.Kind, s.Metadata = "jobset.x-k8s.io/v1alpha2", "JobSet", m{"name": j.Ticket, "labels": labels}
	s.Spec.Network = m{"enableDNSHostnames": true, "publishNotReadyAddresses": true}
	s.Spec.FailurePolicy = m{"maxRestarts": spec.BackoffLimit, "rules": []m{
		{"name": "final", "action": "FailJobSet", "onJobFailureReasons": []string{"PodFailurePolicy"}}}}
	spec.BackoffLimit = 0
	r := replicated{Name: replicatedJob, Replicas: 1}
	r.Template.Metadata, r.Template.Spec = m{"labels": labels}, spec
	s.Spec.ReplicatedJobs = []replicated{r}
	return asYAML(s)
}

// jobSpec is the Job itself.
func (j Job) jobSpec(pods int, labels m) (d jobSpec) {
	onExit := func(action string, codes []int) m {
		return m{"action": action, "onExitCodes": m{"containerName": "apr", "operator": "In", "values": codes}}
	}
	d.CompletionMode, d.Completions, d.Parallelism, d.BackoffLimit = "Indexed", pods, pods, 3*pods
	d.PodFailurePolicy = m{"rules": []m{
		onExit("Ignore", resumableCodes), onExit("FailJob", finalCodes),
		{"action": "Ignore", "onPodConditions": []m{{"type": "DisruptionTarget", "status": "True"}}},
	}}
	c := container{
		Name: "apr", Image: j.Image, WorkingDir: j.Dir, Mounts: []m{{"name": "work", "mountPath": j.Dir}},
		Command: []string{"/bin/sh", "-c", literal(j.again() + `exec "$@"`)}, Args: []string{"apr-job"},
		Env: j.env(pods),
	}
	for _, a := range j.Command {
		c.Args = append(c.Args, literal(a))
	}
	if j.Secret != "" {
		c.EnvFrom = []m{{"secretRef": m{"name": j.Secret}}}
	}
	if j.GPUs > 0 {
		c.Resources = m{"limits": m{"nvidia.com/gpu": j.GPUs}}
	}
	d.Template.Metadata = m{"labels": labels}
	d.Template.Spec = podSpec{
		RestartPolicy: "Never", Grace: seconds(j.Grace), Containers: []container{c},
		Volumes: []m{{"name": "work", "persistentVolumeClaim": m{"claimName": j.Claim}}},
	}
	return d
}

// env is the environment of a pod.
func (j Job) env(pods int) (all []pair) {
	env := j.Env
	if j.several() {
		master := j.Ticket + "-0." + j.Ticket
		if j.Set {
			master = "" // its own names say it
		}
		env = append(slices.Clip(env), launcher.JobVariables(pods, j.Ranks, master, rankPort)...)
	}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		all = append(all, pair{Name: name, Value: literal(value)})
	}
	if j.several() && j.Set {
		for _, l := range launcher.JobSetLabels() {
			all = append(all, pair{Name: l.Variable,
				ValueFrom: m{"fieldRef": m{"fieldPath": "metadata.labels['" + l.Label + "']"}}})
		}
	}
	return all
}

func asYAML(v any) ([]byte, error) {
	text, err := yaml.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("the manifest cannot be written as YAML: %w", err)
	}
	return text, nil
}
