// Package distill trains a student from a teacher: the loss, one optimiser step, the loop around it, checkpoints and
// bit-exact resumption, and a whole run from opened inputs to written outputs.
//
// Trainer.Apply is one step; Loss.Backward is head and loss, chunk by chunk; Run is a run with its directory. A run has
// one leg, the student's, or two: the second trains an identical student on the same tokens without the teacher.
//
// Caveats. α is the weight of the divergence, 1−α that of cross-entropy. All randomness is a function of the seed
// and of a name or an epoch, so a checkpoint holds a position and no generator state. A signal never breaks off a step.
package distill
