; Three bytes of a block of Q6_K hold four 6-bit codes: the nibbles of two bytes ql0 and ql1, and two bits each of qh.
; Each answer after an (echo) is unsat, "no counterexample", but for controls, which are sat.

; The code of group k of a half, for one element: what the format says.
(define-fun code ((ql0 (_ BitVec 8)) (ql1 (_ BitVec 8)) (qh (_ BitVec 8)) (k (_ BitVec 8))) (_ BitVec 8)
  (let ((ql (ite (= ((_ extract 0 0) k) #b1) ql1 ql0)))
    (bvor (bvand (bvlshr ql (bvshl (bvlshr k #x01) #x02)) #x0f)
          (bvshl (bvand (bvlshr qh (bvshl k #x01)) #x03) #x04))))

; What quant.codesQ6K computes for eight elements at a time; ql is that of the group.
(define-fun wide ((x (_ BitVec 8))) (_ BitVec 64) ((_ zero_extend 56) x))
(define-fun codes ((ql (_ BitVec 64)) (qh (_ BitVec 64)) (k (_ BitVec 8))) (_ BitVec 64)
  (bvor (bvand (bvlshr ql (wide (bvshl (bvlshr k #x01) #x02))) #x0f0f0f0f0f0f0f0f)
        (bvshl (bvand (bvlshr qh (wide (bvshl k #x01))) #x0303030303030303) #x0000000000000004)))

; The bytes that hold four codes.
(define-fun pack-ql ((low (_ BitVec 8)) (high (_ BitVec 8))) (_ BitVec 8) (bvor (bvand low #x0f) (bvshl high #x04)))
(define-fun pack-qh ((c0 (_ BitVec 8)) (c1 (_ BitVec 8)) (c2 (_ BitVec 8)) (c3 (_ BitVec 8))) (_ BitVec 8)
  (bvor (bvlshr c0 #x04) (bvshl (bvlshr c1 #x04) #x02) (bvshl (bvlshr c2 #x04) #x04) (bvshl (bvlshr c3 #x04) #x06)))
(define-fun six ((x (_ BitVec 8))) Bool (= (bvand x #xc0) #x00))
(define-fun lane ((x (_ BitVec 64)) (l (_ BitVec 8))) (_ BitVec 8) ((_ extract 7 0) (bvlshr x (wide (bvshl l #x03)))))

(declare-const ql0 (_ BitVec 8))
(declare-const ql1 (_ BitVec 8))
(declare-const qh (_ BitVec 8))
(declare-const c0 (_ BitVec 8))
(declare-const c1 (_ BitVec 8))
(declare-const c2 (_ BitVec 8))
(declare-const c3 (_ BitVec 8))
(declare-const x (_ BitVec 64))
(declare-const y (_ BitVec 64))
(declare-const z (_ BitVec 64))
(declare-const k (_ BitVec 8))
(declare-const l (_ BitVec 8))

(push)
(assert (and (bvult k #x04) (bvult l #x08)))
(assert (not (= (lane (codes (ite (= ((_ extract 0 0) k) #b1) y x) z k) l) (code (lane x l) (lane y l) (lane z l) k))))
(echo "eight elements at a time are eight elements")
(check-sat)
(pop)

(push)
(assert (bvult k #x04))
(assert (not (six (code ql0 ql1 qh k))))
(echo "a code has six bits")
(check-sat)
(pop)

(push)
(assert (and (six c0) (six c1) (six c2) (six c3)))
(define-fun p0 () (_ BitVec 8) (pack-ql c0 c2))
(define-fun p1 () (_ BitVec 8) (pack-ql c1 c3))
(define-fun p2 () (_ BitVec 8) (pack-qh c0 c1 c2 c3))
(assert (not (and (= (code p0 p1 p2 #x00) c0) (= (code p0 p1 p2 #x01) c1) (= (code p0 p1 p2 #x02) c2) (= (code p0 p1 p2 #x03) c3))))
(echo "packing loses nothing")
(check-sat)
(pop)

(push)
(define-fun d0 () (_ BitVec 8) (code ql0 ql1 qh #x00))
(define-fun d1 () (_ BitVec 8) (code ql0 ql1 qh #x01))
(define-fun d2 () (_ BitVec 8) (code ql0 ql1 qh #x02))
(define-fun d3 () (_ BitVec 8) (code ql0 ql1 qh #x03))
(assert (not (and (= (pack-ql d0 d2) ql0) (= (pack-ql d1 d3) ql1) (= (pack-qh d0 d1 d2 d3) qh))))
(echo "every bit of the bytes is used")
(check-sat)
(pop)

(push)
(assert (= (code ql0 ql1 qh #x00) (code ql0 ql1 qh #x03)))
(echo "control: two codes may be equal")
(check-sat)
(pop)
