//apr:kernel y:rw x:r w:r:u32 bias:r | m:u32 n:u32 k:u32 depth:u32 add:u32 biased:u32
//apr:variants f32 bf16 f16 q8_0 q4_k q6_k
//apr:lanes 256
//apr:include wide wide_rows wide_nn_$variant

// y = x·W, or added to y. x [m, k], w [k, n], y [m, n].

fn run(group: u32, lane: u32) { sum_wide(group, lane); }
