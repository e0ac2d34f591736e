; The twelve bytes that hold the eight 6-bit scales and the eight 6-bit minima of a block of Q4_K or Q5_K.
;
; s is the twelve bytes as one little-endian number: byte 0 is the lowest. sc and m hold byte j for group j. Each answer
; after an (echo) is unsat, "no counterexample", but for controls, which are sat.

; What quant.scalesMins computes, on three words of 32 bits.
(define-fun a ((s (_ BitVec 96))) (_ BitVec 32) ((_ extract 31 0) s))
(define-fun b ((s (_ BitVec 96))) (_ BitVec 32) ((_ extract 63 32) s))
(define-fun c ((s (_ BitVec 96))) (_ BitVec 32) ((_ extract 95 64) s))
(define-fun scales ((s (_ BitVec 96))) (_ BitVec 64)
  (concat (bvor (bvand (c s) #x0f0f0f0f) (bvand (bvlshr (a s) #x00000002) #x30303030))
          (bvand (a s) #x3f3f3f3f)))
(define-fun mins ((s (_ BitVec 96))) (_ BitVec 64)
  (concat (bvor (bvand (bvlshr (c s) #x00000004) #x0f0f0f0f) (bvand (bvlshr (b s) #x00000002) #x30303030))
          (bvand (b s) #x3f3f3f3f)))

; What quant.packScalesMins computes.
(define-fun low ((x (_ BitVec 64))) (_ BitVec 32) ((_ extract 31 0) x))
(define-fun high ((x (_ BitVec 64))) (_ BitVec 32) ((_ extract 63 32) x))
(define-fun pack ((sc (_ BitVec 64)) (m (_ BitVec 64))) (_ BitVec 96)
  (concat (bvor (bvand (high sc) #x0f0f0f0f) (bvand (bvshl (high m) #x00000004) #xf0f0f0f0))
  (concat (bvor (low m) (bvand (bvshl (high m) #x00000002) #xc0c0c0c0))
          (bvor (low sc) (bvand (bvshl (high sc) #x00000002) #xc0c0c0c0)))))

; What the format says, byte by byte: groups 0 to 3 in the low six bits of bytes 0 to 7; groups 4 to 7 with four bits in
; a nibble of bytes 8 to 11 and two on top of the byte of group j-4.
(define-fun byte ((s (_ BitVec 96)) (i (_ BitVec 96))) (_ BitVec 8) ((_ extract 7 0) (bvlshr s (bvshl i #x000000000000000000000003))))
(define-fun scale-low ((s (_ BitVec 96)) (j (_ BitVec 96))) (_ BitVec 8) (bvand (byte s j) #x3f))
(define-fun min-low ((s (_ BitVec 96)) (j (_ BitVec 96))) (_ BitVec 8) (bvand (byte s (bvadd j #x000000000000000000000004)) #x3f))
(define-fun scale-high ((s (_ BitVec 96)) (j (_ BitVec 96))) (_ BitVec 8)
  (bvor (bvand (byte s (bvadd j #x000000000000000000000004)) #x0f)
        (bvshl (bvlshr (byte s (bvsub j #x000000000000000000000004)) #x06) #x04)))
(define-fun min-high ((s (_ BitVec 96)) (j (_ BitVec 96))) (_ BitVec 8)
  (bvor (bvlshr (byte s (bvadd j #x000000000000000000000004)) #x04)
        (bvshl (bvlshr (byte s j) #x06) #x04)))
(define-fun group ((x (_ BitVec 64)) (j (_ BitVec 96))) (_ BitVec 8)
  ((_ extract 7 0) (bvlshr x ((_ extract 63 0) (bvshl j #x000000000000000000000003)))))
(define-fun six ((x (_ BitVec 64))) Bool (= (bvand x #xc0c0c0c0c0c0c0c0) #x0000000000000000))

(declare-const s (_ BitVec 96))
(declare-const sc (_ BitVec 64))
(declare-const m (_ BitVec 64))
(declare-const j (_ BitVec 96))

(push)
(assert (bvult j #x000000000000000000000004))
(assert (not (and (= (group (scales s) j) (scale-low s j)) (= (group (mins s) j) (min-low s j)))))
(echo "groups 0 to 3 are read where the format has them")
(check-sat)
(pop)

(push)
(assert (bvuge j #x000000000000000000000004))
(assert (bvult j #x000000000000000000000008))
(assert (not (and (= (group (scales s) j) (scale-high s j)) (= (group (mins s) j) (min-high s j)))))
(echo "groups 4 to 7 are read where the format has them")
(check-sat)
(pop)

(push)
(assert (not (and (six (scales s)) (six (mins s)))))
(echo "what is read has six bits")
(check-sat)
(pop)

(push)
(assert (and (six sc) (six m)))
(assert (not (and (= (scales (pack sc m)) sc) (= (mins (pack sc m)) m))))
(echo "packing loses nothing")
(check-sat)
(pop)

(push)
(assert (not (= (pack (scales s) (mins s)) s)))
(echo "every bit of the bytes is used")
(check-sat)
(pop)

(push)
(assert (not (= (scales (pack sc m)) sc)))
(echo "control: seven bits do not fit")
(check-sat)
(pop)
