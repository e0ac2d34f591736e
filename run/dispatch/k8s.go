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
		Name  string `yaml:"name"`
		Value string `yaml:"value"`
	}
	manifest struct {
		APIVersion string `yaml:"apiVersion"`
		Kind       string `yaml:"kind"`
		Metadata   m      `yaml:"metadata"`
		Spec       struct {
			CompletionMode   string `yaml:"completionMode"`
			Completions      int    `yaml:"completions"`
			Parallelism      int    `yaml:"parallelism"`
			BackoffLimit     int    `yaml:"backoffLimit"`
			PodFailurePolicy m      `yaml:"podFailurePolicy"`
			Template         struct {
				Metadata m       `yaml:"metadata"`
				Spec     podSpec `yaml:"spec"`
			} `yaml:"template"`
		} `yaml:"spec"`
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
// again fails the Job at once.
func (j Job) Manifest() ([]byte, error) {
	onExit := func(action string, codes []int) m {
		return m{"action": action, "onExitCodes": m{"containerName": "apr", "operator": "In", "values": codes}}
	}
	labels := m{"app.kubernetes.io/name": "apr", "apr/ticket": j.Ticket}
	var d manifest
	d.APIVersion, d.Kind, d.Metadata = "batch/v1", "Job", m{"name": j.Ticket, "labels": labels}
	pods := max(j.Parts, j.Machines, 1)
	d.Spec.CompletionMode, d.Spec.Completions, d.Spec.Parallelism, d.Spec.BackoffLimit = "Indexed", pods, pods, 3*pods
	d.Spec.PodFailurePolicy = m{"rules": []m{
		onExit("Ignore", resumableCodes), onExit("FailJob", finalCodes),
		{"action": "Ignore", "onPodConditions": []m{{"type": "DisruptionTarget", "status": "True"}}},
	}}
	c := container{
		Name: "apr", Image: j.Image, WorkingDir: j.Dir, Mounts: []m{{"name": "work", "mountPath": j.Dir}},
		Command: []string{"/bin/sh", "-c", literal(j.again() + `exec "$@"`)}, Args: []string{"apr-job"},
	}
	for _, a := range j.Command {
		c.Args = append(c.Args, literal(a))
	}
	env := j.Env
	if j.several() {
		env = append(slices.Clip(env), launcher.JobVariables(pods, j.Ranks, j.Ticket+"-0."+j.Ticket, rankPort)...)
	}
	for _, e := range env {
		name, value, _ := strings.Cut(e, "=")
		c.Env = append(c.Env, pair{name, literal(value)})
	}
	if j.Secret != "" {
		c.EnvFrom = []m{{"secretRef": m{"name": j.Secret}}}
	}
	if j.GPUs > 0 {
		c.Resources = m{"limits": m{"nvidia.com/gpu": j.GPUs}}
	}
	d.Spec.Template.Metadata = m{"labels": labels}
	d.Spec.Template.Spec = podSpec{
		RestartPolicy: "Never", Grace: seconds(j.Grace), Containers: []container{c},
		Volumes: []m{{"name": "work", "persistentVolumeClaim": m{"claimName": j.Claim}}},
	}
	if !j.several() {
		return asYAML(d)
	}
	d.Spec.Template.Spec.Subdomain = j.Ticket
	first, err := asYAML(j.headless(labels))
	if err != nil {
		return nil, err
	}
	second, err := asYAML(d)
	return slices.Concat(first, []byte("---\n"), second), err
}

func asYAML(v any) ([]byte, error) {
	text, err := yaml.Marshal(v)
	if err != nil {
		return nil, fmt.Errorf("the manifest cannot be written as YAML: %w", err)
	}
	return text, nil
}
