//apr:kernel y:rw x:r w:r:u32 bias:r | m:u32 n:u32 k:u32 depth:u32 add:u32 biased:u32
//apr:variants f32 bf16 f16 q8_0 q4_k q6_k
//apr:lanes 256
//apr:include wide wide_rows wide_nt_$variant

// y = x·Wᵀ + bias, or added to y. x [m, k], w [n, k], y [m, n].

fn run(group: u32, lane: u32) { sum_wide(group, lane); }
