// All layers of a model of experts for one position, as decode_layers.cuh. What is new: which matrices a layer reads is known only when
// its router has chosen, by a product of which every block has some rows; every block then makes the choice for itself.
//
// The chosen experts are one network: gate and up have their rows one expert after the other, down their columns, and what comes
// between is multiplied by the experts' weights, so that one product adds all of them up, in a fixed order. A place in these matrices is
// turned into one in the stacks of all experts when it is copied.
//
// While a router is waited for nothing can be copied to shared memory: what comes next there is not known. The next layer's q, k, v and o
// are asked to come to the second cache meanwhile.
#pragma once
#include "decode_layers.cuh"
#include "route.cuh"

constexpr u32 MOST_EXPERTS = 256, MOST_ACTIVE = 32;
constexpr u32 MATRIX = 8;                     // of a span: its matrix + MATRIX · which of the chosen experts it is of
constexpr u32 NOT_YET = 0xffffffffu; // a logit that has not come: NaN, but not the one that arithmetic gives

struct ExpertArgs : VariantArgs { // inter: active·width
    u32 experts, active, width, renorm; // width: values within an expert
    u32 row_at, none;                   // of x and of a row of the router, in shared memory
};
static_assert(sizeof(ExpertArgs) == 208, "as in decode_experts_sm90.go");

// here returns x in a way that what follows from it is computed where it is written: it would take registers from products.
APR_DEVICE u32 here(u32 x) {
    int v = (int)x;
    opaque(v);
    return (u32)v;
}

// Logits of layers of even and of odd number stand behind what an Exchange has.
APR_DEVICE float *logits_of(const ExpertArgs &a, u32 layer) {
    const Exchange first(a, 0);
    return (float *)(first.product + PRODUCTS_KEPT * a.inter) + (layer & 1) * a.experts;
}

// forget_logits unsets those of the block. By one warp.
APR_DEVICE void forget_logits(const ExpertArgs &a, u32 layer) {
    float *z = logits_of(a, layer);
    NO_UNROLL for (u32 e = block() + here(lane()) * blocks(); e < a.experts; e += 32 * blocks()) strong_store(z + e, from_bits(NOT_YET));
}

// Chosen is what a block knows of the experts of a layer, in shared memory.
struct Chosen {
    u32 expert[MOST_ACTIVE];
    u32 key[MOST_ACTIVE];      // of their logits
    float weight[MOST_ACTIVE]; // of these
    float all;                 // sum of the softmax, if it is over all experts
    u32 bad;                   // some logit is NaN
    u32 known;                 // the last Batch that may be copied
};

// Keys of floats are in their order, and above 0; both zeros have one.
APR_DEVICE u32 key_of(float x) {
    const u32 bits = __builtin_bit_cast(u32, x + 0.0f);
    return bits ^ (bits >> 31 ? ~0u : 1u << 31);
}
APR_DEVICE float of_key(u32 key) { return from_bits(key ^ (key >> 31 ? 1u << 31 : ~0u)); }

// choose finds the experts by the logits that blocks have left, as route_token does: by one warp, of which a lane has EACH
// consecutive experts. c.known becomes `known`. All copies of experts wait for it: a lane finds the place of its largest key
// while lanes compare theirs, and weights are computed later.
template <u32 EACH> APR_DEVICE void choose(const ExpertArgs &a, const float *logits, u32 known, Chosen &c) {
    const u32 l = here(lane());
    u32 keys[EACH] = {}; // 0: no expert, or chosen
    bool bad = false, missing;
    auto there = [&](u32 k) { return EACH * l + k < a.experts; }; // of 4 from a multiple of 4 all or none
    do {
        relax();
        missing = false;
        UNROLL for (u32 k = 0; k < EACH; k += 4) {
            if (!there(k)) continue;
            const u32x4 v = strong_load16(logits + EACH * l + k);
            UNROLL for (u32 i = 0; i < 4; i++) keys[k + i] = v[i], missing |= v[i] == NOT_YET;
        }
    } while (ballot(missing) != 0);
    UNROLL for (u32 k = 0; k < EACH; k++) {
        if (!there(k & ~3u)) continue;
        const float z = from_bits(keys[k]);
        bad |= z != z;
        keys[k] = key_of(z != z ? -INFINITY_F : z);
    }
    auto largest = [&] {
        u32 best = 0;
        UNROLL for (u32 k = 0; k < EACH; k++) best = best > keys[k] ? best : keys[k];
        return best;
    };
    if (!a.renorm) {
        const float first = of_key(warp_max(largest()));
        float all = 0;
        UNROLL for (u32 k = 0; k < EACH; k++)
            if (keys[k] > 0) all += weigh(of_key(keys[k]), first);
        all = warp_sum(all);
        if (l == 0) c.all = all;
    }
    NO_UNROLL for (u32 s = 0; s < a.active; s++) {
        const u32 best = largest(), top = warp_max(best);
        u32 at = 0;
        UNROLL for (u32 k = EACH; k-- > 0;) at = keys[k] == best ? k : at; // the first of equals
        const bool leads = l == (u32)__builtin_ctz(ballot(best == top));
        if (leads) c.expert[s] = EACH * l + at, c.key[s] = best;
        UNROLL for (u32 k = 0; k < EACH; k++) keys[k] = leads && at == k ? 0 : keys[k];
    }
    bad = ballot(bad) != 0;
    if (l == 0) c.bad = bad, c.known = known;
}

// weigh_chosen computes the weights of the chosen experts. By one warp.
APR_DEVICE void weigh_chosen(const ExpertArgs &a, Chosen &c) {
    const u32 l = here(lane());
    const bool chose = l < a.active;
    const float own = chose ? weigh(of_key(c.key[l]), of_key(c.key[0])) : 0.0f, sum = warp_sum(own);
    if (chose) c.weight[l] = c.bad ? from_bits(0x7fffffffu) : own / (a.renorm ? sum : c.all);
}

// fetch_router copies row e of a router to shared memory; a thread copies what it reads.
APR_DEVICE void fetch_router(const ExpertArgs &a, bf16 *to, const bf16 *router, u32 e) {
    NO_UNROLL for (u32 pack = here(thread()); pack < a.hidden / 8; pack += threads()) copy_async16(to + 8 * pack, router + (u64)e * a.hidden + 8 * pack);
    copy_async_commit();
}

// route leaves the block's logits: row is the normalised x, of which a thread has written what it reads, and behind it the block's first row of
// the router is on its way. sums has a place for each warp.
APR_DEVICE void route(const ExpertArgs &a, const bf16 *router, bf16 *row, float *sums, float *logits) {
    float x[8], w[8];
    NO_UNROLL for (u32 e = block(); e < a.experts; e += blocks()) {
        if (e > block()) fetch_router(a, row + a.hidden, router, e);
        copy_async_wait<0>();
        float sum = 0;
        NO_UNROLL for (u32 at = 8 * here(thread()); at < a.hidden; at += 8 * threads()) {
            Pack<bf16, 8> v;
            load_pack(v, row + at);
            widen(x, v);
            load_pack(v, row + a.hidden + at);
            widen(w, v);
            UNROLL for (int i = 0; i < 8; i++) sum = fma_rn(x[i], w[i], sum);
        }
        sum = warp_sum(sum);
        if (lane() == 0) sums[here(warp())] = sum;
        sync_block();
        if (thread() == 0) {
            sum = 0;
            UNROLL for (u32 k = 0; k < DECODE_WARPS; k++) sum += sums[k];
            strong_store(logits + e, sum);
        }
        if (e + blocks() < a.experts) sync_block(); // sums are written again
    }
}

// round_row rounds a row that a thread has written where it reads it.
APR_DEVICE void round_row(const ExpertArgs &a, const bf16 *row, u8 *x) {
    NO_UNROLL for (u32 first = here(32 * warp()); first < a.hidden / 8; first += threads()) {
        const u32 pack = first + lane();
        const bool live = pack < a.hidden / 8;
        round_pack<BySpan>(x, pack, live ? load16(row + 8 * pack) : u32x4{}, live);
    }
}

// Batch is what a warp copies next, in shared memory. The spans of a layer come in two batches: those of q, k, v and o, and those of its experts,
// which wait until the block knows them.
struct Batch {
    const Span *spans;       // of the warp, in a layer
    u32 number;              // 2·layer, or 2·layer + 1 of its experts
    u32 next;                // of its spans: after those that lanes have
    u32 begin[PRODUCTS + 1]; // of a layer's spans: those of each product, and their end
    APR_METHOD u32 first() const { return number & 1 ? begin[2] : 0; }
    APR_METHOD u32 end() const { return begin[number & 1 ? 4 : 2]; }
};

// ExpertFeed is Feed for layers of experts. Slots that are free while a batch waits are owed a copy.
struct ExpertFeed {
    const ExpertArgs &a;
    Batch *batches;  // [DECODE_WARPS]
    const Chosen &chosen;
    const u8 **from; // a span of each thread of the block, in shared memory
    u32 owed;        // copies
    u32 size;        // of the lane's span; 0: none, or copied
    // place says where a span is in memory: see within.
    APR_METHOD void place(const Model &m, u32 layer, const Span &s, const u8 *&p, u32 &n) const {
        const DecodeLayer &l = m.layers[layer];
        const u32 matrix = s.matrix % MATRIX, bytes = 2 * (l.kind[matrix] & 4095);
        u64 groups = s.at;
        if (matrix > 3) groups += (u64)chosen.expert[s.matrix / MATRIX] * (here(a.width) / TILE * (a.hidden / 32));
        const u64 before = groups * bytes;
        p = l.w[matrix] + before - lead(before), n = s.groups * bytes + lead(before);
    }
    // more gives the lanes their next spans, if there are any that may be copied.
    APR_METHOD bool more(const Model &m) {
        Batch &own = batches[here(warp())];
        Batch b = own;
        NO_UNROLL while (b.next >= b.end()) {
            if (b.number == chosen.known) return false;
            b.number++, b.next = b.first();
        }
        const u32 i = b.next + here(lane());
        if (i < b.end()) place(m, b.number / 2, b.spans[i], from[here(thread())], size);
        sync_warp(); // every lane has read
        own.number = b.number, own.next = b.next + 32;
        sync_warp();
        return true;
    }
    // copy begins the copies that are owed, as far as it may: to the slots before slot `turn`.
    APR_METHOD void copy(const Model &m, const Ring &ring, u32 turn) {
        NO_UNROLL while (owed > 0) {
            u32 left = ballot(size > 0);
            if (left == 0) {
                if (!more(m)) return;
                left = ballot(size > 0);
            }
            const u32 slot = turn >= owed ? turn - owed : turn + a.slots - owed;
            if (lane() == (u32)__builtin_ctz(left)) copy_bulk(ring.all_filled + slot, ring.slots + slot * a.pitch, from[here(thread())], size), size = 0;
            owed--;
        }
    }
    APR_METHOD void fill(const Model &m, const Ring &ring) {
        owed++;
        copy(m, ring, ring.turn + 1);
    }
    // expect asks for q, k, v and o of a layer to come to the cache of the device.
    APR_METHOD void expect(const Model &m, u32 layer) const {
        const Batch &own = batches[here(warp())];
        NO_UNROLL for (u32 i = 0; i < own.begin[2]; i++) {
            const u8 *p;
            u32 n;
            place(m, layer, own.spans[i], p, n);
            NO_UNROLL for (u32 line = 128 * here(lane()); line < n; line += 128 * 32) prefetch(p + line);
        }
    }
};

// ExpertProduct is Product for layers of experts.
struct ExpertProduct : Product<Model, ExpertFeed> {
    // multiply_all is multiply, by pieces of `piece` spans of a row that stand one after the other.
    template <bool ALL> APR_METHOD void multiply_all(const DecodeLayer &l, u32 product, u32 piece, const Span *spans, u32 count, float *sums) {
        const u32 of_row = m.spans(product), groups = m.groups(product);
        NO_UNROLL for (u32 i = 0; i < count;) {
            const u32 row_end = i + (u32)min_of(of_row - spans[i].number, count - i), place = spans[i].place;
            float sum[2] = {};
            NO_UNROLL while (i < row_end) {
                const Span s = spans[i];
                const u32 n = (u32)min_of(piece - s.number % piece, row_end - i), type = l.kind[s.matrix % MATRIX] / 4096;
                if (type == 0) stretch<RowsQ4K>(sum, s, n, groups);
                else if (type == 2) stretch<RowsQ6K>(sum, s, n, groups);
                else if (!ALL || type == 1) stretch<RowsQ5K>(sum, s, n, groups);
                else if (type == 3) stretch<RowsOfGroups<GroupQ8_0>>(sum, s, n, groups);
                else if (type == 4) stretch<RowsOfGroups<GroupQ4_0>>(sum, s, n, groups);
                else stretch<RowsOfGroups<GroupQ5_0>>(sum, s, n, groups);
                i += n;
            }
            UNROLL for (u32 r = 0; r < 2; r++) {
                sum[r] += shfl_xor(sum[r], 1);
                sum[r] += shfl_xor(sum[r], 2);
                if ((lane() & 3) == 0) sums[place * TILE + (lane() >> 2) + 8 * r] = sum[r];
            }
        }
    }
};

// within makes places of gate, up and down those in one expert's matrix; which of the chosen it is stands with the matrix.
// By each warp, of its spans.
APR_DEVICE void within(const ExpertArgs &a, Span *spans, u32 gate_up, u32 down) {
    const u32 of_row = a.width / 32, all = a.inter / 32, each = a.width / TILE * (a.hidden / 32);
    NO_UNROLL for (u32 i = lane(); i < gate_up + down; i += 32) {
        Span s = spans[i];
        const u32 tile = s.at / all, choice = i < gate_up ? s.at / each : (s.at - tile * all) / of_row;
        s.at = i < gate_up ? s.at - choice * each : tile * of_row + s.at - tile * all - choice * of_row;
        s.matrix += MATRIX * choice;
        spans[i] = s;
    }
}

// finish_weighted writes silu(g)·u of the block's rows of gate and up, times the weights of their experts.
APR_DEVICE void finish_weighted(const ExpertArgs &a, const Model &m, const Sums &sums, const float *weights, bf16 *to) {
    const Share gate = m.shares[4];
    const u32 width = here(a.width);
    NO_UNROLL for (u32 i = here(thread()); i < gate.tiles * TILE; i += threads()) {
        const float g = sums.row(i / TILE, i % TILE), u = sums.row(gate.tiles + i / TILE, i % TILE);
        const u32 column = gate.first * TILE + i;
        strong_store(to + column, to_bf16(gated<bf16>(from_bf16(to_bf16(g)), from_bf16(to_bf16(u))) * weights[column / width]));
    }
}

// decode_all_experts is decode_all. Grid: one block a multiprocessor, all at once.
template <bool ALL> APR_DEVICE void decode_all_experts(const ExpertArgs &a) {
    DYNAMIC_SHARED(shared);
    SHARED(Share, shares, 8);
    SHARED(bf16, fresh, 3 * 256);
    SHARED(u32, counts, DECODE_WARPS * PRODUCTS);
    SHARED(u64, filled, DECODE_WARPS * SLOTS);
    SHARED(u32, meetings, 1);
    SHARED(float, squares, DECODE_WARPS);
    SHARED(float, dots, DECODE_WARPS);
    SHARED(Chosen, chosen, 1);
    SHARED(Batch, batches, DECODE_WARPS);
    SHARED(const u8 *, from, 32 * DECODE_WARPS);
    DecodeLayer *layers = (DecodeLayer *)(shared + a.layers_at);
    const Model m = {a, layers, shares};
    for (u32 i = thread(); i < a.count * (sizeof(DecodeLayer) / 16); i += threads()) store16((u8 *)layers + 16 * i, load16((const u8 *)a.layers + 16 * i));
    for (u32 i = thread(); i < ZEROS / 16; i += threads()) store16(shared + a.zeros_at + 16 * i, u32x4{});
    if (thread() < MATRICES) shares[thread()] = m.share(thread());
    if (thread() == threads() - 1) meetings[0] = chosen[0].known = 0;
    sync_block();
    if (warp() < PRODUCTS_KEPT) forget(m, warp()), forget_logits(a, warp());
    const Work work = {(Span *)(shared + a.spans_at), (TileSums *)(shared + a.tiles_at), counts};
    work.describe(m);
    sync_warp();
    {
        const u32 *n = counts + warp() * PRODUCTS, o = n[0] + n[1];
        Span *spans = work.spans + warp() * a.spans;
        batches[warp()] = {spans, 0, 0, {0, n[0], o, o + n[2], o + n[2] + n[3]}};
        within(a, spans + o, n[2], n[3]);
    }
    sync_block();
    float *sums = (float *)(shared + a.sums_at), *own = (float *)(shared + a.own_at), *bias = (float *)(shared + a.bias_at);
    bf16 *row = (bf16 *)(shared + a.row_at);
    const bool last_warp = warp() == DECODE_WARPS - 1; // which alone arrives at barriers and waits there
    auto arrive = [&] {
        if (!last_warp) return;
        grid_arrive(a.arrived);
        if (lane() == 31) meetings[0]++;
    };
    if (last_warp) begin(m, own);
    arrive();
    if (lane() < a.slots) bulk_init(filled + warp() * SLOTS + lane(), 1);
    sync_warp();
    ExpertProduct x = {{m, shared, shared + a.zeros_at, {shared + a.ring_at + warp() * a.slots * a.pitch, filled + warp() * SLOTS, 0, 0, 0}, {a, batches, chosen[0], from, a.slots, 0}}};
    x.feed.copy(m, x.ring, x.ring.turn);
    grid_wait(a.arrived, meetings[0]);
    NO_UNROLL for (u32 layer = 0; layer < a.count; layer++) {
        NO_UNROLL for (u32 product = 0; product < PRODUCTS; product++) {
            NormPacks w; // on their way while x comes, as is a row of the router
            const u32 i = here(thread());
            if (product == 0 && i < m.tiles(0) * TILE) bias[i] = bias_of(m, layers[layer].bias, i);
            if (product % 2 == 0) w.load(a, layers[layer].norm[product / 2]);
            if (product == 0) expect(a, layers[layer], Place(a, layer));
            if (product == 2 && block() < a.experts) fetch_router(a, row + a.hidden, layers[layer].router, block());
            if (product == 2 && layer + 1 < a.count) x.feed.expect(m, layer + 1); // after what is needed first
            if (product % 2 == 0) {
                const Exchange e(a, product == 0 ? layer - 1 : layer);
                normalised(a, product == 0 ? e.down : e.o, w, squares, here(32 * warp()), [&](u32x4 v, u32 pack, bool live) {
                    if (product == 0) round_pack<BySpan>(shared, pack, v, live);
                    else if (live) store16(row + 8 * pack, v);
                });
            } else {
                const Exchange e(a, layer);
                rounded<2>(product == 1 ? e.att : e.product, m.cols(product), shared);
            }
            if (product == 2) {
                route(a, layers[layer].router, row, dots, logits_of(a, layer));
                round_row(a, row, shared); // while logits come
                if (warp() == 0) {
                    const u32 known = (u32)min_of(2 * layer + 2, 2 * a.count - 1);
                    if (a.experts > MOST_EXPERTS / 2) choose<MOST_EXPERTS / 32>(a, logits_of(a, layer), known, chosen[0]);
                    else choose<MOST_EXPERTS / 64>(a, logits_of(a, layer), known, chosen[0]);
                }
                sync_block(); // x is there, and the choice
                x.feed.copy(m, x.ring, x.ring.turn);
                arrive(); // its fence takes longer than to ask for bytes
                if (warp() == 0) weigh_chosen(a, chosen[0]);
            } else {
                sync_block();
            }
            if (product == 3 && last_warp) {
                if (lane() == 31) grid_see(a.arrived, meetings[0]);
                sync_warp();
                forget(m, layer);
                forget_logits(a, layer);
            }
            const Batch &own_spans = batches[here(warp())];
            const u32 piece = product == 3 ? here(a.width) / 256 : m.spans(product), first = own_spans.begin[product];
            x.multiply_all<ALL>(layers[layer], product, piece, own_spans.spans + first, own_spans.begin[product + 1] - first, sums);
            sync_block();
            const Sums found = {sums, work.tiles + product * a.tiles};
            const Exchange e(a, layer);
            if (product == 0) finish_qkv(m, found, bias, e.qkv);
            else if (product == 2) finish_weighted(a, m, found, chosen[0].weight, e.product);
            else finish_added(a, m, found, own, product == 1 ? e.o : e.down);
            if (product > 0) continue;
            NO_UNROLL for (u32 item = block(); item < a.heads * a.splits; item += blocks()) {
                attend<true>(a, layers[layer], layer, item, fresh, (float *)shared, squares);
                sync_block();
            }
            if (a.splits == 1) continue;
            arrive();
            grid_wait(a.arrived, meetings[0]);
            NO_UNROLL for (u32 h = block(); h < a.heads; h += blocks()) {
                if (thread() >= a.d) continue;
                const Joined r = join_shares(a.part + (i64)h * PART, (i64)a.heads * PART, a.splits, thread());
                strong_store(Exchange(a, layer).att + h * a.d + thread(), to_bf16(r.acc / r.sum));
            }
        }
    }
    if (block() > 0) return;
    NormPacks w;
    w.load(a, a.norm);
    normalised(a, Exchange(a, a.count - 1).down, w, squares, [&](u32x4 v, u32 pack, bool live) {
        if (live) store16(a.y + 8 * pack, v);
    });
}
