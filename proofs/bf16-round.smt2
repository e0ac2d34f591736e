; tensor.F32ToBF16 rounds to nearest, ties to even, for every float32; NaN stays a quiet NaN of its sign.
; Each answer after an (echo) is unsat, "no counterexample", but for controls, which are sat.

(define-fun nan ((u (_ BitVec 32))) Bool (bvugt (bvand u #x7fffffff) #x7f800000))
; What the function computes.
(define-fun round ((u (_ BitVec 32))) (_ BitVec 16)
  (ite (nan u)
    (bvor ((_ extract 31 16) u) #x0040)
    ((_ extract 31 16) (bvadd u #x00007fff (bvand (bvlshr u #x00000010) #x00000001)))))

(declare-const u (_ BitVec 32))
(define-fun f () (_ FloatingPoint 8 24) ((_ to_fp 8 24) u))
(define-fun g () (_ FloatingPoint 8 8) ((_ to_fp 8 8) (round u)))

(push)
(assert (not (= (nan u) (fp.isNaN f))))
(echo "NaN is recognised by its bits")
(check-sat)
(pop)

(push)
(assert (not (nan u)))
(assert (not (= g ((_ to_fp 8 8) RNE f))))
(echo "rounding is to nearest, ties to even, with infinities and zeros of both signs")
(check-sat)
(pop)

(push)
(assert (nan u))
(assert (not (and (fp.isNaN g) (= ((_ extract 15 15) (round u)) ((_ extract 31 31) u)) (= ((_ extract 6 6) (round u)) #b1))))
(echo "NaN stays a quiet NaN of its sign")
(check-sat)
(pop)

(push)
(assert (= ((_ extract 15 0) u) #x0000))
(assert (not (nan u)))
(assert (not (= (round u) ((_ extract 31 16) u))))
(echo "a number that is a bfloat16 stays as it is")
(check-sat)
(pop)

(push)
(assert (not (nan u)))
(assert (not (= g ((_ to_fp 8 8) RNA f))))
(echo "control: ties do not go away from zero")
(check-sat)
(pop)
