package runlog

// Kinship is how teacher and student are related by their values.
type Kinship struct {
	Relation   string   `json:"relation"`                // different, same, derived
	Tensor     string   `json:"tensor,omitempty"`        // that decided, or differs most
	Field      string   `json:"field,omitempty"`         // of the configurations, if that decided
	Difference Number   `json:"relative_difference"`     // ‖a−b‖/max(‖a‖,‖b‖) of a stretch of the tensor
	Rounding   string   `json:"rounding,omitempty"`      // that explains it
	Values     int64    `json:"values_compared"`         // up to the one that decided
	Tensors    int      `json:"tensors,omitempty"`       // of models that are different, where at least half are alike
	Alike      int      `json:"tensors_alike,omitempty"` // equal or rounded, by a sample of each
	Others     []string `json:"tensors_different,omitempty"`
	Close      bool     `json:"close,omitempty"`            // different, but each matrix is near the other model's, by a sample of each
	Within     Number   `json:"close_within,omitempty"`     // the largest relative difference of a matrix of close models
	Farthest   string   `json:"close_farthest,omitempty"`   // that matrix
	Moved      int      `json:"layers_moved,omitempty"`     // layers that are the teacher's, elsewhere
	Embedding  Number   `json:"embedding_cosine,omitempty"` // mean of a sample of rows, of different models of equal hidden size
	Angles     Number   `json:"embedding_angles,omitempty"` // correlation of the cosines between these rows
	Sketch     bool     `json:"sketch,omitempty"`           // by what a cache keeps of its teacher
	Allowed    bool     `json:"allowed"`                    // same or derived, and that was asked for
	Text       string   `json:"text"`
}

// MostlyAlike is the name of the event of a run whose student is another model, with most of the teacher's tensors.
const MostlyAlike = "the student has tensors of the teacher"

// CloseToTeacher is the name of the event of a run whose student is another model, with no matrix far from the teacher's.
const CloseToTeacher = "the student is close to the teacher"

// FirstStepEqual is the name of the event of a run whose student gave the teacher's distribution before it was trained.
const FirstStepEqual = "nothing to learn in the first step"

// FirstStepAgrees is the name of the event of a run whose student nearly gave it.
const FirstStepAgrees = "first_step_agrees"

// EmbeddingAgrees is the name of the event of a run whose student has the teacher's embedding, where no divergence of
// the first step is known.
const EmbeddingAgrees = "embedding_agrees"

// BlocksChangeNothing is the name of the event of a quantisation-aware run whose student was in its blocks before.
const BlocksChangeNothing = "blocks change nothing"

// CoarseTeacher is the name of the event of a quantisation-aware run whose teacher is the student in blocks of no more
// bits.
const CoarseTeacher = "the teacher's blocks are as coarse"

// TeacherIsStudent is the name of the event of a run that goes on with a teacher that has the student's values.
const TeacherIsStudent = "a teacher is the student"

// WordsOfTeacher is the name of the event of a run whose teacher reads other words than the student.
const WordsOfTeacher = "words of the teacher's own"

// HeldOutText is the name of the record of the text that a run was scored on.
const HeldOutText = "held-out text"

// OwnText is the name of the event of a run whose student learns what it wrote itself, from nobody else; EditedText of
// one whose generated records were changed since a model wrote them.
const (
	OwnText    = "the student learns its own text"
	EditedText = "generated text was edited"
)

// DoubtfulModel is the name of the event of a run whose teacher or student is in a file that may be damaged.
const DoubtfulModel = "doubtful model file"

// TeacherBelowUniform is the name of the event of a run whose teacher scored worse than chance on the held-out text.
const TeacherBelowUniform = "teacher worse than uniform"

// TeacherBelowFrequencies is the name of the event of a run whose teacher scored no better there than the frequencies
// of tokens.
const TeacherBelowFrequencies = "teacher no better than token frequencies"
