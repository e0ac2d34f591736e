// The gates of a unit: act 0 is SiLU, 1 GELU by tanh, 2 the clamped SwiGLU of gpt-oss, 3 σ.

fn sigmoid(x: f32) -> f32 { return 1.0 / (1.0 + exp_(-x)); }

// σ of which GELU is g·σ: of 2√(2/π)(g + 0.044715g³).
fn gelu_sigmoid(g: f32) -> f32 { return sigmoid(1.5957691216 * (g + 0.044715 * g * g * g)); }
