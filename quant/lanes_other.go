//go:build !amd64

package quant

type isa int

const plain isa = 0

// vectors is the level of vector code in use: there is none.
const vectors = plain

// Nothing calls these.

const none = "quant: no vector code here"

func scanLanes(*affineGroups, *affineBest, float64, float64, float64) { panic(none) }

func refineLanes(*affineGroups, *affineBest, float64) { panic(none) }

func roundLanes(*affineGroups, *affineRound, float64, float64, float64, float64, float64) {
	panic(none)
}

func integerLanes(*[group]byte, *[group]float64, float64, float64, float64, float64) { panic(none) }

func symmetricScanLanes(*symmetricGroups, *symmetricBest, float64) { panic(none) }

func symmetricRefineLanes(*symmetricGroups, *symmetricBest) { panic(none) }

func symmetricRoundLanes(*symmetricGroups, *symmetricRound, float64, float64) { panic(none) }
