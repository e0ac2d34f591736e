// All layers of a model for 2 to 4 consecutive positions of a sequence as one launch: decode_layers.cuh for several
// rows of x, with its tiles, copies, exchanges and barriers, and for each row its bits. Matrices are of Q4_K, Q5_K and
// Q6_K.
//
// Tensor cores multiply a group of 32 columns of a tile by four rows of x at a time, whose parts hi and lo are the
// eight columns of the matrix B: lane 4g + t gets the sums of rows g and g+8 for row t of x. What decode_layers.cuh
// adds up in four lanes, this lane adds up in four sums, in the same order. Two rows leave half of the columns of B to
// other groups: lane 4g + t gets the sums for row t%2 of a group of the first half of the span's columns or, if t > 1,
// of one of the second half, and so has half of the scales and sums. B has zeros for groups of the other half.
//
// x of down has too many columns to stand in shared memory for several rows, and a warp needs those of its spans alone.
// It comes as codes, a span at a time: the block that has a group of 32 columns rounds it, once for all.
//apr:module target=sm_90a types=bf16 roles=few-row-blocks,optional emulated=yes
#include "decode_layers.cuh"

constexpr u32 MOST_ROWS = 4; // of x

// How 256 values of four rows of x stand in shared memory: four planes, of which plane j has what lane 4g + t holds of
// B for groups 2j and 2j+1 at 16·(4g + t), g being twice the row, and one more for lo, and of two rows in planes 2 and 3
// four more, with zeros where no row stands; then for each plane and row the powers of two and the sums of both groups,
// 16 bytes; then, so too, the sums of first halves and those of second halves. Planes are as far apart as keeps lanes
// that write different ones at different banks.
constexpr u32 LISTS_4X = 3 * 512 + 80 + 512, HALVES_4X = LISTS_4X + 256, SPAN_4X = HALVES_4X + 256;
APR_DEVICE u32 plane_4x(u32 j) { return 512 * j + 16 * (j & 1) + 64 * (j >> 1); }

// So do they stand in what blocks exchange of down's x, without room between planes. There hi and lo are the digits
// of x to the base of 255 and not 256, so that none of them is −128: a word of such bytes is one that has not come
// yet. As a float it is neither a power of two nor a sum of values in units of one.
constexpr u32 LISTS_SENT = 4 * 512, SPAN_SENT = LISTS_SENT + 512, UNSENT = 0x80808080u;
constexpr i32 SENT_BASE = 255;

struct PassArgs : DecodeArgs { // x [rows, hidden]; y [kept, hidden], of the last rows; position is that of the first row
    const DecodeVariant *variants; // [count], of which the norms of heads count; zero: there are none
    i64 x_stride, y_stride;        // elements
    u32 rows, kept;
    float inv_d;
    float two23;   // 2²³. The assembler does not know it, and so keeps it in a register: see with_byte
    u32 minus_one; // nor does it know this one: see Columns<RowsQ4K>
};
static_assert(sizeof(PassArgs) == 216, "as in decode_rows_sm90.go");

// lane_here and warp_here are lane() and warp(): what is computed from them stays where it is written, and takes no
// register elsewhere.
APR_DEVICE u32 lane_here() {
    int l = (int)lane();
    opaque(l);
    return (u32)l;
}
APR_DEVICE u32 warp_here() {
    int t = (int)thread();
    opaque(t);
    return (u32)t / 32;
}

// PassExchange is Exchange for all rows, one after the other in each place.
struct PassExchange {
    bf16 *qkv, *att, *o, *down, *product; // product: of groups whose halves two blocks have, second ones
    u8 *codes;                            // of silu(gate)·up
    APR_METHOD PassExchange(const PassArgs &a, u32 number) {
        int layer = (int)number;
        opaque(layer);
        const u32 heads = a.heads * a.d, all = heads + 2 * a.kv_heads * a.d, each = a.rows * (all + heads + 2 * a.hidden);
        qkv = a.between + (layer & 1) * each, att = qkv + a.rows * all, o = att + a.rows * heads, down = o + a.rows * a.hidden;
        product = a.between + 2 * each + (layer & (PRODUCTS_KEPT - 1)) * a.rows * a.inter;
        codes = (u8 *)(a.between + 2 * each + PRODUCTS_KEPT * a.rows * a.inter) + (layer & (PRODUCTS_KEPT - 1)) * (a.inter / 256) * SPAN_SENT;
    }
};

// round_row rounds 256 values of row `row` of ROWS, two or four, to their place at x. Lane l has 8 of them.
template <u32 ROWS> APR_DEVICE void round_row(u8 *x, u32 row, u32 l, u32x4 v) {
    Rounded r = round8(v);
    r.sum += shfl_xor(r.sum, 1);
    const i32 rest = shfl_xor(r.sum, 2);
    const u32 group = l / 4, k = l % 4, j = group / 2, e = group % 2;
    u32 *to = (u32 *)(x + plane_4x(j) + 128 * row + 32 * (k & 1)) + 2 * e + (k >> 1);
    if (ROWS == 2) {
        u32 *zeros = to + 64 * (1 - j / 2);
        to += 64 * (j / 2);
        zeros[0] = 0, zeros[4] = 0, zeros[16] = 0, zeros[20] = 0;
    }
    to[0] = r.hi[0], to[4] = r.hi[1], to[16] = r.lo[0], to[20] = r.lo[1];
    if (k > 0) return;
    float *list = (float *)(x + LISTS_4X + 64 * j + 16 * row) + e, *halves = list + (HALVES_4X - LISTS_4X) / 4;
    list[0] = r.scale, list[2] = mul_rn(r.scale, (float)(r.sum + rest));
    halves[0] = mul_rn(r.scale, (float)r.sum), halves[2] = mul_rn(r.scale, (float)rest);
}

// with_byte returns 2²³, whose bits are given, plus byte n of v. An instruction has room for one constant, which should
// be n: if 2²³ were one, each n would take an instruction to come to a register.
APR_DEVICE float with_byte(u32 v, u32 n, u32 two23) { return from_bits(byte_perm(v, two23, 0x7440 + n)); }

// elected is true for one lane of a warp, all of which take part. Unlike lane() == 0 the assembler knows that it is one,
// and makes no loop over lanes of what only a warp does.
#ifdef APR_HOST
APR_DEVICE bool elected() { return sync_warp(), lane() == 0; }
#else
APR_DEVICE bool elected() {
    u32 r;
    asm volatile("{ .reg .pred p;\nelect.sync _|p, 0xffffffff;\nselp.u32 %0, 1, 0, p; }" : "=r"(r));
    return r;
}
#endif

// PassFeed is Feed whose copies are begun by a lane that the assembler knows.
struct PassFeed : Feed {
    APR_METHOD void fill(const Model &m, const Ring &ring) {
        const bool mine = elected();
        const u32 low = shfl((u32)(u64)from, (int)at), high = shfl((u32)((u64)from >> 32), (int)at), bytes = shfl(size, (int)at);
        if (mine && bytes > 0) copy_bulk(ring.filled(), ring.slot(), (const u8 *)((u64)high << 32 | low), bytes);
        if (++at == 32) describe(m);
    }
};

// Columns is what lanes read of a tile's span of a type: codes as the operand A of groups 2j and 2j+1, and their
// scales: of groups 0 … 3 and 4 … 7 or, of two rows, of those of the lane's half.
template <class B, u32 ROWS> struct PairColumns {
    u32 scale[2][ROWS / 2], minimum[2][ROWS / 2]; // codes of rows g and g+8
    float d[2], dmin[2];
    u32 two23;
    APR_METHOD PairColumns(const u8 *span, u32 l, u32 two23) : two23(two23) {
        UNROLL for (u32 r = 0; r < 2; r++) {
            const u32x4 head = load16(span + B::bytes * ((l >> 2) + 8 * r));
            if constexpr (ROWS == 2) {
                const u32 second = l & 2;
                scale[r][0] = ((second ? head[3] : head[1]) & 0x0f0f0f0fu) | (head[1] >> second & 0x30303030u);
                minimum[r][0] = ((second ? head[3] >> 4 : head[2]) & 0x0f0f0f0fu) | (head[2] >> second & 0x30303030u);
            } else {
                scale[r][0] = head[1] & 0x3f3f3f3fu, scale[r][1] = (head[3] & 0x0f0f0f0fu) | (head[1] >> 2 & 0x30303030u);
                minimum[r][0] = head[2] & 0x3f3f3f3fu, minimum[r][1] = (head[3] >> 4 & 0x0f0f0f0fu) | (head[2] >> 2 & 0x30303030u);
            }
            d[r] = from_f16((u16)head[0]), dmin[r] = from_f16((u16)(head[0] >> 16));
        }
    }
    // scales are those of group c of those that the lane has, exact as in pair_scales.
    APR_METHOD void scales(float &s, float &off, u32 r, u32 c) const {
        s = fma_rn(d[r], with_byte(scale[r][c / 4], c % 4, two23), -8388608.0f * d[r]);
        off = fma_rn(dmin[r], with_byte(minimum[r][c / 4], c % 4, two23), -8388608.0f * dmin[r]);
    }
};
// pieces_at is where a lane's address for ldmatrix4 stands of 32 bytes of each row, of which the operand A has all: see
// mma_us.
APR_DEVICE const u8 *pieces_at(const u8 *span, u32 l, u32 pitch) { return span + pitch * (l & 15) + 16 * (l >> 4); }

template <class B, u32 ROWS> struct Columns;
template <u32 ROWS> struct Columns<RowsQ4K, ROWS> : PairColumns<RowsQ4K, ROWS> {
    static constexpr float of_odd = 0.0625f; // codes of odd groups are 16 times theirs
    const u8 *at;
    u32 minus_one;
    APR_METHOD Columns(const u8 *span, u32 l, const PassArgs &a) : PairColumns<RowsQ4K, ROWS>(span, l, bits(a.two23)), at(pieces_at(span, l, RowsQ4K::bytes) + 16), minus_one(a.minus_one) {}
    // codes of odd groups are what even ones leave of the words. With two rows multipliers subtract them, which have
    // time, where what does operations of bits has none.
    APR_METHOD void codes(u32 (&low)[4], u32 (&high)[4], u32 j) const {
        u32 w[4];
        ldmatrix4(w, at + 32 * j);
        UNROLL for (u32 i = 0; i < 4; i++) low[i] = w[i] & 0x0f0f0f0fu, high[i] = ROWS == 2 ? low[i] * minus_one + w[i] : w[i] & 0xf0f0f0f0u;
    }
};
template <u32 ROWS> struct Columns<RowsQ5K, ROWS> : PairColumns<RowsQ5K, ROWS> {
    static constexpr float of_odd = 1;
    const u8 *at;
    u32 fifth[4];
    APR_METHOD Columns(const u8 *span, u32 l, const PassArgs &a) : PairColumns<RowsQ5K, ROWS>(span, l, bits(a.two23)), at(pieces_at(span, l, RowsQ5K::bytes) + 48) { ldmatrix4(fifth, at - 32); }
    APR_METHOD void codes(u32 (&low)[4], u32 (&high)[4], u32 j) const {
        u32 w[4];
        ldmatrix4(w, at + 32 * j);
        UNROLL for (u32 i = 0; i < 4; i++) {
            low[i] = (w[i] & 0x0f0f0f0fu) | (fifth[i] >> 2 * j & 0x01010101u) << 4;
            high[i] = (w[i] >> 4 & 0x0f0f0f0fu) | (fifth[i] >> (2 * j + 1) & 0x01010101u) << 4;
        }
    }
};
// Of Q6_K groups 4h … 4h+3 have their upper bits together, and halves of a group have scales.
template <u32 ROWS> struct Columns<RowsQ6K, ROWS> {
    const u8 *at, *codes_at;
    float d[2];
    u32 two23;
    APR_METHOD Columns(const u8 *span, u32 l, const PassArgs &a) : at(pieces_at(span, l, 192)), codes_at(span + 192 * TILE + 16 * (l >> 2)), two23(bits(a.two23)) {
        UNROLL for (u32 r = 0; r < 2; r++) d[r] = from_f16(*(const u16 *)(span + 208 * TILE + 2 * ((l >> 2) + 8 * r)));
    }
    APR_METHOD void words(u32 (&q)[2][4], u32 (&upper)[4], u32 h) const {
        UNROLL for (u32 i = 0; i < 2; i++) ldmatrix4(q[i], at + 64 * h + 32 * i);
        ldmatrix4(upper, at + 128 + 32 * h);
    }
    // scales are those of half i of group 4h + k.
    APR_METHOD float scale(const u32x2 (&codes)[2], u32 r, u32 k, u32 i) const {
        return mul_rn(d[r], with_byte(codes[r][k / 2] ^ 0x80808080u, 2 * (k & 1) + i, two23) - 8388736.0f);
    }
};

// times_x adds to acc the products of a span with x, whose digits have a base: acc[r][t] is what lane t of a row of
// decode_layers.cuh adds up or, of two rows, lane 2h + t, h being the lane's half of the columns.
template <class B, u32 ROWS> APR_DEVICE void times_x(float (&acc)[2][ROWS], const u8 *span, const u8 *x, i32 base, const PassArgs &a) {
    constexpr u32 HALVES = ROWS / 2, TOGETHER = 2 / HALVES; // of the columns, those that a lane has; whose products are one
    const u32 l = lane_here();
    const Columns<B, ROWS> columns(span, l, a);
    const u32 own = ROWS == 2 ? l >> 1 & 1 : 0;
    const u8 *lists = x + LISTS_4X + 16 * (l & (ROWS - 1)) + 128 * own;
    if constexpr (B::halves) {
        UNROLL for (u32 h = 0; h < HALVES; h++) {
            u32 q[TOGETHER][2][4], upper[TOGETHER][4];
            UNROLL for (u32 n = 0; n < TOGETHER; n++) columns.words(q[n], upper[n], h + n);
            const u8 *of_scales = columns.codes_at + 8 * (h + own);
            const u32x2 codes[2] = {*(const u32x2 *)of_scales, *(const u32x2 *)(of_scales + 128)};
            UNROLL for (u32 k = 0; k < 4; k++) {
                const u32 j = 2 * h + k / 2, e = k % 2;
                u32 w[TOGETHER][4];
                u32x2 b[TOGETHER];
                UNROLL for (u32 n = 0; n < TOGETHER; n++) {
                    UNROLL for (u32 i = 0; i < 4; i++) w[n][i] = (q[n][e][i] >> 4 * (k >> 1) & 0x0f0f0f0fu) | ((k < 2 ? upper[n][i] << (4 - 2 * k) : upper[n][i] >> (2 * k - 4)) & 0x30303030u);
                    b[n] = *(const u32x2 *)(x + plane_4x(j + 2 * n) + 16 * l + 8 * e);
                }
                const float scale = *(const float *)(lists + 64 * j + 4 * e);
                UNROLL for (u32 i = 0; i < 2; i++) {
                    const float total = *(const float *)(lists + HALVES_4X - LISTS_4X + 64 * j + 4 * e + 8 * i);
                    i32 d[4] = {};
                    if (ROWS == 2) { // half i of both groups
                        const u32 halves[4] = {w[0][2 * i], w[0][2 * i + 1], w[TOGETHER - 1][2 * i], w[TOGETHER - 1][2 * i + 1]};
                        mma_us(d, halves, b[0][i], b[TOGETHER - 1][i]);
                    } else {
                        const u32 half[4] = {w[0][2 * i], w[0][2 * i + 1], 0, 0};
                        mma_us(d, half, b[0][i], 0);
                    }
                    UNROLL for (u32 r = 0; r < 2; r++) {
                        float &sum = acc[r][2 * h + i];
                        sum = with_group<B>(sum, columns.scale(codes, r, k, i), 0, mul_rn(scale, (float)(d[2 * r] * base + d[2 * r + 1])), total);
                    }
                }
            }
        }
    } else {
        UNROLL for (u32 j = 0; j < ROWS; j++) {
            u32 w[TOGETHER][2][4];
            u32x4 b[TOGETHER];
            UNROLL for (u32 n = 0; n < TOGETHER; n++) columns.codes(w[n][0], w[n][1], j + 2 * n), b[n] = load16(x + plane_4x(j + 2 * n) + 16 * l);
            float s[2][2], off[2][2];
            UNROLL for (u32 e = 0; e < 2; e++)
                UNROLL for (u32 r = 0; r < 2; r++) columns.scales(s[e][r], off[e][r], r, 2 * j + e);
            const f32x4 list = *(const f32x4 *)(lists + 64 * j); // scales, sums
            UNROLL for (u32 e = 0; e < 2; e++) {
                const float scale = e ? list[e] * Columns<B, ROWS>::of_odd : list[e]; // exact, as are scales
                i32 d[4] = {};
                UNROLL for (u32 n = 0; n < TOGETHER; n++) mma_us(d, w[n][e], b[n][2 * e], b[n][2 * e + 1]);
                UNROLL for (u32 r = 0; r < 2; r++)
                    acc[r][j] = with_group<B>(acc[r][j], s[e][r], off[e][r], mul_rn(scale, (float)(d[2 * r] * base + d[2 * r + 1])), list[2 + e]);
            }
        }
    }
}

// unsent reports whether a word of lists, or of codes, has not come.
APR_DEVICE bool unsent(u32x4 v) { return v[0] == UNSENT || v[1] == UNSENT || v[2] == UNSENT || v[3] == UNSENT; }
APR_DEVICE bool unsent(const u32x4 (&codes)[4]) { // 0x80 is the least of bytes
    i32 least = 0;
    UNROLL for (u32 j = 0; j < 4; j++)
        UNROLL for (u32 i = 0; i < 4; i++) least = (i32)codes[j][i] < least ? (i32)codes[j][i] : least;
    return least == (i32)UNSENT;
}

// SentSpan is a warp's next span of down's x on its way.
struct SentSpan {
    const PassArgs &a;
    u32x4 codes[4], lists;
    APR_METHOD explicit SentSpan(const PassArgs &a) : a(a), codes{}, lists{} {}
    APR_METHOD void ask_codes(const u8 *span) {
        const u32 l = lane_here();
        if (l / 8 < a.rows)
            UNROLL for (u32 j = 0; j < 4; j++) codes[j] = strong_load16(span + 512 * j + 16 * l);
    }
    APR_METHOD void ask_lists(const u8 *span) {
        const u32 l = lane_here();
        if (l % 4 < a.rows) lists = strong_load16(span + LISTS_SENT + 16 * l);
    }
    APR_METHOD void ask(const u8 *span) { ask_lists(span), ask_codes(span); }
    // settle waits for the words that had not come: while lists are missing all lanes read the last one of these.
    APR_METHOD void settle(const u8 *span) {
        NO_UNROLL while (u32 missing = ballot(unsent(lists))) {
            const u8 *last = span + LISTS_SENT + 16 * (31 - leading_zeros(missing));
            NO_UNROLL while (unsent(strong_load16(last))) relax();
            ask_lists(span);
        }
        NO_UNROLL while (ballot(unsent(codes))) relax(), ask_codes(span);
    }
    // put leaves the span at x. Of two rows lanes from 16 on have zeros.
    template <u32 ROWS> APR_METHOD void put(u8 *x) const {
        UNROLL for (u32 j = 0; j < 4; j++) store16(x + plane_4x(j) + 16 * (lane_here() ^ (ROWS == 2 && j > 1 ? 16 : 0)), codes[j]);
        store16(x + LISTS_4X + 16 * lane_here(), lists);
        sync_warp();
    }
};

// PassProduct is Product for ROWS rows of x at most. Types take turns in one loop, which has room for one of what all
// have.
template <u32 ROWS> struct PassProduct {
    const PassArgs &a;
    const Model &m;
    u8 *shared; // x, by span; or what warps have of it, one span each
    Ring ring;
    PassFeed feed;
    // multiply writes the warp's sums of the rows of its tiles for each row of x, which stands in shared memory or, of
    // down, comes as codes. [first, end) are its spans. What spans of a tile have in common is looked up once for them.
    APR_METHOD void multiply(u32 layer, u32 product, u32 first, u32 end) {
        float acc[2][ROWS] = {};
        SentSpan sent(a);
        const u32 of_row = m.spans(product);
        const u8 *const codes = PassExchange(a, layer).codes; // of down's x
        if (product == 3 && first < end) sent.ask(codes + feed.spans[first].number * SPAN_SENT);
        NO_UNROLL for (u32 i = first; i < end;) {
            const Span s = feed.spans[i];
            const u32 kind = m.layers[layer].kind[s.matrix], type = kind / 4096;
            u32 number = s.number, before = s.at * 2 * (kind & 4095), left = (u32)min_of(of_row - number, end - i);
            i += left;
            NO_UNROLL for (;;) {
                int which = (int)product;
                opaque(which); // or there would be a loop for each product
                u8 *x = shared + number * SPAN_4X;
                i32 base = 256;
                if (which == 3) {
                    x = shared + warp_here() * SPAN_4X, base = SENT_BASE;
                    sent.settle(codes + number * SPAN_SENT);
                    sent.put<ROWS>(x);
                    if (left > 1 || i < end) sent.ask(codes + (number + 1 < of_row ? number + 1 : 0) * SPAN_SENT); // on its way during this one's products
                }
                const u8 *w = ring.wait() + lead(before);
                if (type == 0) times_x<RowsQ4K, ROWS>(acc, w, x, base, a);
                else if (type == 2) times_x<RowsQ6K, ROWS>(acc, w, x, base, a);
                else times_x<RowsQ5K, ROWS>(acc, w, x, base, a);
                sync_warp(); // every lane has read: the slot may be filled again, as may x
                feed.fill(m, ring);
                ring.advance(a);
                if (--left == 0) break;
                number++, before += 16 * (kind & 4095);
            }
            int at = (int)a.sums_at;
            opaque(at);
            float *sums = (float *)(shared + at);
            const u32 l = lane_here(), row = l & (ROWS - 1);
            UNROLL for (u32 r = 0; r < 2; r++) {
                float v = acc[r][0] + acc[r][1];
                if constexpr (ROWS == 2) v += shfl_xor(v, 2); // which is the same for both lanes
                else v += acc[r][2] + acc[r][3];
                if (row < a.rows) sums[(row * (DECODE_WARPS + a.tiles) + s.place) * TILE + (l >> 2) + 8 * r] = v;
                UNROLL for (u32 t = 0; t < ROWS; t++) acc[r][t] = 0;
            }
        }
    }
};

// normalised_rows gives `write` RMSNorm of all rows of the hidden state at `from`, as normalised does for one: a pack,
// its row, its number, and whether there is such a pack. squares has a place for each warp and row of ROWS.
template <u32 ROWS, class Write>
APR_DEVICE void normalised_rows(const PassArgs &a, const bf16 *from, const NormPacks &norm, float *squares, const Write &write) {
    static_assert(MOST_HIDDEN == 2);
    const u32 packs = a.hidden / 8;
    int of_thread = (int)thread();
    opaque(of_thread); // places are computed here, not kept in registers during products
    u32x4 v[ROWS][MOST_HIDDEN] = {};
    UNROLL for (u32 r = 0; r < ROWS; r++)
        UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++) {
            const u32 pack = (u32)of_thread + k * threads();
            if (r < a.rows && pack < packs) v[r][k] = strong_load16(from + r * (u64)a.hidden + 8 * pack);
        }
    float p[8], q[8];
    UNROLL for (u32 r = 0; r < ROWS; r++) {
        if (r >= a.rows) continue;
        float sum = 0;
        UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++) {
            if (k * threads() >= packs) continue;
            Pack<bf16, 8> x = {settled(v[r][k], from + r * (u64)a.hidden, ((u32)of_thread & ~31u) + k * threads(), packs)};
            v[r][k] = x.v;
            widen(p, x);
            UNROLL for (int e = 0; e < 8; e++) sum = fma_rn(p[e], p[e], sum);
        }
        sum = warp_sum(sum);
        if (of_thread % 32 == 0) squares[r * DECODE_WARPS + of_thread / 32] = sum;
    }
    sync_block();
    float sum = 0; // of row lane() % ROWS
    UNROLL for (u32 k = 0; k < DECODE_WARPS; k++) sum += squares[lane_here() % ROWS * DECODE_WARPS + k];
    const float rstds = 1.0f / sqrt_rn(fma_rn(sum, a.inv_hidden, a.eps));
    NO_UNROLL for (u32 k = 0; k < MOST_HIDDEN; k++) {
        const u32 pack = (u32)of_thread + k * threads();
        if (pack - of_thread % 32 >= packs) break; // of the whole warp
        widen(q, norm.w[0]);
        if (k > 0) widen(q, norm.w[1]);
        UNROLL for (u32 r = 0; r < ROWS; r++) {
            if (r >= a.rows) continue;
            const float rstd = shfl(rstds, r);
            Pack<bf16, 8> x = {v[r][0]};
            if (k > 0) x.v = v[r][1];
            widen(p, x);
            UNROLL for (int e = 0; e < 8; e++) p[e] = p[e] * rstd * q[e];
            narrow(x, p);
            write(x.v, r, pack, pack < packs);
        }
    }
}

// rounded_rows writes rows that other blocks have computed to x in integers, 256 columns a warp.
template <u32 ROWS> APR_DEVICE void rounded_rows(const PassArgs &a, const bf16 *from, u32 cols, u8 *x) {
    constexpr u32 LOADS = 4;
    const u32 spans = cols / 256, all = a.rows * spans;
    int of_thread = (int)thread();
    opaque(of_thread);
    u32 row = 0, span = (u32)of_thread / 32;
    NO_UNROLL for (u32 first = span; first < all; first += LOADS * DECODE_WARPS) {
        u32x4 v[LOADS] = {};
        UNROLL for (u32 k = 0; k < LOADS; k++)
            if (first + k * DECODE_WARPS < all) v[k] = strong_load16(from + 256 * (u64)(first + k * DECODE_WARPS) + 8 * lane_here());
        UNROLL for (u32 k = 0; k < LOADS; k++) {
            const u32 i = first + k * DECODE_WARPS;
            if (i >= all) continue;
            NO_UNROLL while (span >= spans) span -= spans, row++;
            round_row<ROWS>(x + span * SPAN_4X, row, lane_here(), settled(v[k], from, 32 * i, 32 * all));
            span += DECODE_WARPS;
        }
    }
}

// PassSums are the results of multiply for all rows of x.
struct PassSums {
    const float *sums;
    const TileSums *tiles;
    u32 pitch;
    APR_METHOD Sums of(u32 row) const { return {sums + row * pitch, tiles}; }
};

// word_sent is where word n of row `row` of a group stands among the codes of all groups: 16 of codes, then the power
// of two and the sum, then the sums of both halves.
constexpr u32 WORDS_SENT = 20;
APR_DEVICE float *word_sent(u8 *codes, u32 group, u32 row, u32 n) {
    const u32 j = group % 8 / 2, e = group % 2;
    const u32 of_codes = 512 * j + 128 * row + 64 * (n >> 3) + 16 * (n >> 1 & 3) + 8 * e + 4 * (n & 1);
    const u32 of_lists = LISTS_SENT + 64 * j + 16 * row + 4 * e + 256 * (n >> 1 & 1) + 8 * (n & 1);
    return (float *)(codes + group / 8 * SPAN_SENT + (n < 16 ? of_codes : of_lists));
}

// send rounds a group of 32 values, one of each lane, as round8 does, and leaves its words for all.
APR_DEVICE void send(u8 *codes, u32 group, u32 row, bf16 v) {
    const u32 l = lane_here();
    u32 most = v & 0x7fffu;
    UNROLL for (u32 d = 16; d; d /= 2) {
        const u32 other = shfl_xor(most, d);
        most = most > other ? most : other;
    }
    most <<= 16;
    const u32 e = (most + 0x10000) >> 23, at = e < 15 ? 15 : e;
    const float scale = most >> 23 == 255 ? from_bits(0x7fc00000u) : from_bits((at - 14) << 23);
    constexpr float whole = 12582912; // 1.5·2²³ + n has n in its mantissa
    const float n = fma_rn(from_bf16(v), from_bits((268 - at) << 23), whole);
    const i32 value = (i32)(bits(n) - bits(whole)), hi = (i32)(bits(fma_rn(n - whole, 1.0f / SENT_BASE, whole)) - bits(whole));
    i32 sum = value;
    UNROLL for (u32 d = 1; d < 16; d *= 2) sum += shfl_xor(sum, d);
    const i32 rest = shfl_xor(sum, 16), first = l < 16 ? sum : rest, second = l < 16 ? rest : sum;
    // Of four lanes the first gets a word of hi and one of lo, of its columns. Word n of 8 is that of columns
    // 16·(n%2) + 4·(n/2) on.
    u32 pair = ((u32)hi & 255) | ((u32)(value - SENT_BASE * hi) & 255) << 8;
    pair = byte_perm(pair, shfl_xor(pair, 1), 0x5140);
    const u32 other = shfl_xor(pair, 2), of_hi = byte_perm(pair, other, 0x5410), of_lo = byte_perm(pair, other, 0x7632);
    const u32 from = 16 * (l & 1) + 4 * (l >> 1 & 3), word_hi = shfl(of_hi, from), word_lo = shfl(of_lo, from);
    const i32 total = l == 17 ? sum + rest : l == 18 ? first : second;
    const float of_lists = l == 16 ? scale : mul_rn(scale, (float)total);
    if (l < WORDS_SENT) strong_store(word_sent(codes, group, row, l), l < 8 ? from_bits(word_hi) : l < 16 ? from_bits(word_lo) : of_lists);
}

// Groups are those of gate·up of which a block has the first half, or with `all` any.
struct Groups {
    u32 first, count;
    APR_METHOD Groups(const Share &s, bool all) {
        first = (s.first + (all ? 0 : 1)) / 2, count = s.tiles ? (s.first + s.tiles + 1) / 2 - first : 0;
    }
};

// finish_gated sends silu(g)·u of the block's rows of gate and up, a warp a group of half of the rows of x. If another
// block has the first half of a group, that one sends it and gets the second. What others wait for comes first.
template <u32 ROWS> APR_DEVICE void finish_gated(const PassArgs &a, const Model &m, const PassSums &sums, const PassExchange &to) {
    constexpr u32 EACH = ROWS / 2;
    const Share gate = m.shares[4];
    const Groups groups(gate, true);
    NO_UNROLL for (u32 unit = warp_here(); unit < 2 * groups.count; unit += DECODE_WARPS) {
        const u32 l = lane_here(), group = groups.first + unit / 2, first = EACH * (unit % 2), tile = 2 * group + l / 16 - gate.first, i = l % 16;
        const bool own = tile < gate.tiles;
        bf16 v[EACH] = {}, *half = to.product + first * (u64)a.inter + 32 * group + l;
        UNROLL for (u32 n = 0; n < EACH; n++) {
            if (!own || first + n >= a.rows) continue;
            const float g = sums.of(first + n).row(tile, i), u = sums.of(first + n).row(gate.tiles + tile, i);
            v[n] = to_bf16(gated<bf16>(from_bf16(to_bf16(g)), from_bf16(to_bf16(u))));
        }
        const bool sends = 2 * group >= gate.first;
        UNROLL for (u32 n = 0; n < EACH; n++) {
            if (first + n >= a.rows) continue;
            bf16 *at = half + n * (u64)a.inter;
            if (!sends && own) strong_store(at, v[n]);
            if (!sends) continue;
            if (!own) v[n] = settled(strong_load(at), at);
            send(to.codes, group, first + n, v[n]);
        }
    }
}

// finish_… do for all rows what their namesakes do for one.
APR_DEVICE void finish_qkv(const PassArgs &a, const Model &m, const PassSums &sums, const float *bias, bf16 *to) {
    const u32 all = (a.heads + 2 * a.kv_heads) * a.d;
    u32 column = 0, before = 0;
    NO_UNROLL for (u32 n = 0; n < 3; n++) {
        const Share s = m.shares[n];
        const u32 rows = s.tiles * TILE;
        NO_UNROLL for (u32 k = thread(); k < rows * a.rows; k += threads()) {
            const u32 row = k / rows, i = k % rows;
            strong_store(to + row * all + column + s.first * TILE + i, to_bf16(sums.of(row).row(before + i / TILE, i % TILE) + bias[before * TILE + i]));
        }
        before += s.tiles, column += (n == 0 ? a.heads : a.kv_heads) * a.d;
    }
}

APR_DEVICE void finish_added(const PassArgs &a, const Model &m, const PassSums &sums, float *own, bf16 *to) {
    const Share s = m.shares[3];
    const u32 rows = s.tiles * TILE;
    NO_UNROLL for (u32 first = 0; first < rows * a.rows; first += threads() / 16) {
        const u32 n = first + thread() / 16, part = thread() % 16, row = n / rows, i = n % rows;
        const bool there = n < rows * a.rows;
        float v = there ? sums.of(row).part(i / TILE, i % TILE, part) : 0.0f;
        UNROLL for (u32 d = 8; d; d /= 2) v += shfl_xor(v, d);
        if (!there || part > 0) continue;
        const bf16 x = to_bf16(v + own[n]);
        strong_store(to + row * a.hidden + s.first * TILE + i, x);
        own[n] = from_bf16(x);
    }
}

// forget_row is forget for a row.
APR_DEVICE void forget_row(const PassArgs &a, const Model &m, u32 layer, u32 row) {
    int number = (int)layer;
    opaque(number);
    const PassExchange e(a, (u32)number), before(a, (u32)number - 1);
    const u32 l = lane_here();
    const Share hidden = m.shares[3], inter = m.shares[4];
    const Groups sent(inter, false);
    u32 column = row * (a.heads + 2 * a.kv_heads) * a.d;
    NO_UNROLL for (u32 n = 0; n < 3; n++) {
        const Share s = m.shares[n];
        NO_UNROLL for (u32 i = l; i < s.tiles * TILE; i += 32) strong_store(e.qkv + column + s.first * TILE + i, UNSET);
        column += (n == 0 ? a.heads : a.kv_heads) * a.d;
    }
    NO_UNROLL for (u32 i = l; i < hidden.tiles * TILE; i += 32) {
        const u32 at = row * a.hidden + hidden.first * TILE + i;
        strong_store(e.o + at, UNSET), strong_store(before.down + at, UNSET);
    }
    if (inter.first % 2 && inter.tiles && l < TILE) strong_store(before.product + row * (u64)a.inter + inter.first * TILE + l, UNSET);
    NO_UNROLL for (u32 g = 0; g < sent.count; g++)
        if (l < WORDS_SENT) strong_store(word_sent(before.codes, sent.first + g, row, l), from_bits(UNSENT));
    NO_UNROLL for (u32 h = block(); h < (row + 1) * a.heads; h += blocks())
        NO_UNROLL for (u32 i = l; h >= row * a.heads && i < a.d; i += 32) strong_store(e.att + h * a.d + i, UNSET);
}

// begin_rows is begin for all rows.
APR_DEVICE void begin_rows(const PassArgs &a, const Model &m, float *own) {
    const Share s = m.shares[3];
    const u32 rows = s.tiles * TILE;
    bf16 *x = PassExchange(a, -1).down;
    NO_UNROLL for (u32 n = lane(); n < rows * a.rows; n += 32) {
        const u32 row = n / rows, i = s.first * TILE + n % rows;
        own[n] = from_bf16(a.x[row * a.x_stride + i]);
        strong_store(x + row * a.hidden + i, to_bf16(own[n]));
    }
}

// LatestRows are rows of a cache, but for those from a position on, which stand elsewhere.
struct LatestRows {
    const bf16 *cache, *latest;
    i64 stride;
    int position;
    APR_METHOD const bf16 *operator()(int j) const { return j >= position ? latest + 256 * (j - position) : cache + j * stride; }
};

// shares_of is how many shares the keys of a row's heads are cut into.
constexpr u32 SHARE_KEYS = 768, MOST_SHARES = 64;
APR_DEVICE u32 shares_of(const PassArgs &a, u32 row) { return (u32)min_of((a.position + row + SHARE_KEYS) / SHARE_KEYS, MOST_SHARES); }

// attend_row is attend for a row, which sees the keys of those before it. All of them are finished by every block that
// needs them; the cache gets the row's own. fresh has a row of 256 for q, 4 for keys and 4 for values.
APR_DEVICE void attend_row(const PassArgs &a, const DecodeLayer &layer, u32 number, u32 row, u32 h, u32 split, u8 *shared, float *squares) {
    const u32 d = a.d, half = d / 2, group = a.heads / a.kv_heads, g = h / group, all = (a.heads + 2 * a.kv_heads) * d;
    int of_thread = (int)thread();
    opaque(of_thread);
    const u32 i = (u32)of_thread % half, kinds = 3 + 2 * row, kind = (u32)of_thread / half, step = threads() / half; // kinds: q, keys, values
    const int position = (int)a.position, keys_seen = position + (int)row + 1, splits = (int)shares_of(a, row);
    const int share = (keys_seen - 1 + splits) / splits, first = (int)split * share, end = (int)min_of(keys_seen, first + share);
    float *parts = (float *)shared;
    bf16 *fresh = (bf16 *)(shared + 4 * PART * WARPS), *fresh_k = fresh + 256, *fresh_v = fresh_k + MOST_ROWS * 256;
    const bf16 *qkv = PassExchange(a, number).qkv + i;
    auto column = [&](u32 k) {
        return k == 0 ? row * all + h * d : k <= row + 1 ? (k - 1) * all + (a.heads + g) * d : (k - row - 2) * all + (a.heads + a.kv_heads + g) * d;
    };
    // Pairs of a row d/2 apart: as they come, then normalised and turned by the thread that wrote them.
    auto place = [&](u32 k) { return (k == 0 ? fresh : k <= row + 1 ? fresh_k + 256 * (k - 1) : fresh_v + 256 * (k - row - 2)) + i; };
    const bf16 *keys = layer.cache + g * d, *values = keys + a.kv_heads * d;
    const Lanes lanes(d);
    Ahead<KEYS_AHEAD, bf16> ahead;
    ahead.load(lanes, RowsFrom<bf16>{keys, a.cache_stride}, RowsFrom<bf16>{values, a.cache_stride}, first, (int)min_of(end, position));
    const float *q_norm = a.variants ? a.variants[number].q_norm : nullptr, *k_norm = a.variants ? a.variants[number].k_norm : nullptr;
    NO_UNROLL for (u32 k = kind, n = 0; n * step < kinds; k += step, n++) { // of the whole warp
        float p = 0, q = 0;
        if (k < kinds) {
            const bf16 *from = qkv + column(k);
            const bf16 low = strong_load(from), high = strong_load(from + half);
            bf16 *to = place(k);
            to[0] = settled(low, from), to[half] = settled(high, from + half);
            p = from_bf16(to[0]), q = from_bf16(to[half]);
        }
        if (!a.variants) continue;
        const float sum = warp_sum(fma_rn(p, p, q * q)); // of a part of one row
        if (lane() == 0) squares[n * DECODE_WARPS + warp()] = sum;
    }
    if (a.variants) sync_block();
    NO_UNROLL for (u32 k = kind; k <= row + 1; k += step) { // those that turn
        bf16 *to = place(k);
        float p = from_bf16(to[0]), q = from_bf16(to[half]);
        const float *weights = k == 0 ? q_norm : k_norm;
        if (weights) {
            float sum = 0;
            NO_UNROLL for (u32 part = 0; part < half / 32; part++) sum += squares[k * (half / 32) + part];
            const float rstd = 1.0f / sqrt_rn(fma_rn(sum, a.inv_d, a.eps));
            p = from_bf16(to_bf16(p * rstd * weights[i])), q = from_bf16(to_bf16(q * rstd * weights[half + i]));
        }
        const float *turn = a.table + (k == 0 ? row : k - 1) * d + 2 * i;
        const float cosine = turn[0], sine = turn[1];
        to[0] = to_bf16(p * cosine - q * sine), to[half] = to_bf16(q * cosine + p * sine);
    }
    sync_block();
    if (h % group == 0 && split == 0 && thread() < d) {
        bf16 *to = layer.cache + (i64)keys_seen * a.cache_stride - a.cache_stride + g * d + thread();
        to[0] = fresh_k[256 * row + thread()], to[a.kv_heads * d] = fresh_v[256 * row + thread()];
    }
    UNROLL for (int n = 0; n < KEYS_AHEAD; n++) {
        const int j = first + n * lanes.all + lanes.slot;
        if (j >= position && j < end && lanes.c < lanes.packs)
            load_pack(ahead.k[n], fresh_k + 256 * (j - position) + 8 * lanes.c), load_pack(ahead.v[n], fresh_v + 256 * (j - position) + 8 * lanes.c);
    }
    const LatestRows k = {keys, fresh_k, a.cache_stride, position}, v = {values, fresh_v, a.cache_stride, position};
    const Joined r = attend_keys(lanes, fresh, k, v, ahead, first, end, d, a.log2_scale, parts);
    if (thread() >= d) return;
    if (splits == 1) {
        strong_store(PassExchange(a, number).att + (row * a.heads + h) * d + thread(), to_bf16(r.acc / r.sum));
        return;
    }
    float *to = a.part + (i64)((split * a.rows + row) * a.heads + h) * PART;
    to[thread()] = r.acc;
    if (thread() == 0) to[256] = r.top, to[257] = r.sum;
}

// The whole, for ROWS rows at most. Grid: one block a multiprocessor, all at once.
template <u32 ROWS> APR_DEVICE void decode_pass(const PassArgs &a) {
    DYNAMIC_SHARED(shared);
    SHARED(Share, shares, 8);
    SHARED(u32, counts, DECODE_WARPS * PRODUCTS);
    SHARED(u64, filled, DECODE_WARPS * SLOTS);
    SHARED(u32, meetings, 1);
    SHARED(float, squares, MOST_ROWS * DECODE_WARPS); // of attention too
    DecodeLayer *layers = (DecodeLayer *)(shared + a.layers_at);
    const Model m = {a, layers, shares};
    for (u32 i = thread(); i < a.count * (sizeof(DecodeLayer) / 16); i += threads()) store16((u8 *)layers + 16 * i, load16((const u8 *)a.layers + 16 * i));
    if (thread() < MATRICES) shares[thread()] = m.share(thread());
    if (thread() == threads() - 1) meetings[0] = 0;
    sync_block();
    if (warp() < PRODUCTS_KEPT)
        NO_UNROLL for (u32 row = 0; row < a.rows; row++) forget_row(a, m, warp(), row);
    const Work work = {(Span *)(shared + a.spans_at), (TileSums *)(shared + a.tiles_at), counts};
    work.describe(m);
    sync_block();
    auto at = [&](u32 bytes) { // where floats stand in shared memory, which takes no registers elsewhere
        int n = (int)bytes;
        opaque(n);
        return (float *)(shared + n);
    };
    auto last_warp = [] { return warp_here() == DECODE_WARPS - 1; }; // which alone arrives at barriers
    auto arrive = [&] {
        if (!last_warp()) return;
        grid_arrive(a.arrived);
        if (lane() == 31) meetings[0]++;
    };
    if (last_warp()) begin_rows(a, m, at(a.own_at));
    arrive();
    if (lane() < a.slots) bulk_init(filled + warp() * SLOTS + lane(), 1);
    sync_warp();
    auto count = [&](u32 product) { return counts[warp_here() * PRODUCTS + product]; }; // the warp's spans
    PassProduct<ROWS> x = {a, m, shared, {shared + a.ring_at + warp() * a.slots * a.pitch, filled + warp() * SLOTS, 0, 0, 0}, {{work.spans + warp() * a.spans, 0, 0, count(0) + count(1) + count(2) + count(3), 0, nullptr, 0}}};
    if (x.feed.count > 0) {
        x.feed.describe(m);
        NO_UNROLL for (u32 n = 0; n < a.slots; n++) x.feed.fill(m, x.ring), x.ring.advance(a);
        x.ring.parity = 0; // nothing has been waited for
    }
    grid_wait(a.arrived, meetings[0]);
    NO_UNROLL for (u32 layer = 0; layer < a.count; layer++) {
        u32 spans = 0; // of the layer, that the warp has multiplied
        NO_UNROLL for (u32 product = 0; product < PRODUCTS; product++) {
            NormPacks w; // on their way while x comes, as is the bias
            const u32 rows = product == 0 ? m.tiles(0) * TILE : 0;
            const float v = thread() < rows ? bias_of(m, layers[layer].bias, thread()) : 0.0f;
            if (product == 0) expect(a, layers[layer], Place((const DecodeArgs &)a, layer));
            if (product % 2 == 0) w.load(a, layers[layer].norm[product / 2]);
            if (thread() < rows) at(a.bias_at)[thread()] = v;
            if (product % 2 == 0) {
                int of = (int)layer;
                opaque(of);
                const PassExchange e(a, (u32)(product == 0 ? of - 1 : of));
                normalised_rows<ROWS>(a, product == 0 ? e.down : e.o, w, squares, [&](u32x4 v, u32 row, u32 pack, bool) {
                    round_row<ROWS>(shared + pack / 32 * SPAN_4X, row, pack % 32, v);
                });
            } else if (product == 1) rounded_rows<ROWS>(a, PassExchange(a, layer).att, m.cols(1), shared);
            sync_block();
            if (product == 2) arrive();
            u32 row = 2 * (DECODE_WARPS - 1 - warp_here()); // the last warps have fewer spans than others, or none
            if (product == 3 && row < a.rows) {
                if (lane() == 31) grid_see(a.arrived, meetings[0]);
                sync_warp();
                const u32 end = (u32)min_of(row + 2, a.rows);
                NO_UNROLL for (; row < end; row++) forget_row(a, m, layer, row);
            }
            x.multiply(layer, product, spans, spans + count(product));
            spans += count(product);
            sync_block();
            const PassSums found = {at(a.sums_at), (const TileSums *)at(a.tiles_at) + product * a.tiles, (DECODE_WARPS + a.tiles) * TILE};
            const PassExchange e(a, layer);
            if (product == 0) finish_qkv(a, m, found, at(a.bias_at), e.qkv);
            else if (product == 2) finish_gated<ROWS>(a, m, found, e);
            else finish_added(a, m, found, at(a.own_at), product == 1 ? e.o : e.down);
            if (product > 0) continue;
            int last = (int)a.rows - 1;
            opaque(last);
            const u32 splits = shares_of(a, last);
            NO_UNROLL for (u32 item = block(); item < a.rows * a.heads * splits; item += blocks()) {
                const u32 h = item % a.heads, row = item / a.heads % a.rows, split = item / a.heads / a.rows;
                if (split >= shares_of(a, row)) continue;
                attend_row(a, layers[layer], layer, row, h, split, shared, squares);
                sync_block();
            }
            if (splits == 1) continue;
            arrive();
            grid_wait(a.arrived, meetings[0]);
            NO_UNROLL for (u32 item = block(); item < a.rows * a.heads; item += blocks()) {
                if (thread() >= a.d || shares_of(a, item / a.heads) == 1) continue;
                const Joined r = join_shares(a.part + (i64)item * PART, (i64)a.rows * a.heads * PART, (int)shares_of(a, item / a.heads), thread());
                strong_store(PassExchange(a, layer).att + item * a.d + thread(), to_bf16(r.acc / r.sum));
            }
        }
    }
    NO_UNROLL for (u32 i = block(); i < a.kept; i += blocks()) {
        NormPacks w;
        w.load(a, a.norm);
        sync_block(); // squares have been read
        normalised(a, PassExchange(a, a.count - 1).down + (a.rows - a.kept + i) * (u64)a.hidden, w, squares, [&](u32x4 v, u32 pack, bool live) {
            if (live) store16(a.y + i * a.y_stride + 8 * pack, v);
        });
    }
}

KERNEL(decode_rows_2, PassArgs, 32 * DECODE_WARPS, 1) { decode_pass<2>(a); }
KERNEL(decode_rows_4, PassArgs, 32 * DECODE_WARPS, 1) { decode_pass<4>(a); }
