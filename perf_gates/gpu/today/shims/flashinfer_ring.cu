// FlashInfer's checkpointing_ssu as a plain C function: verification of a window from a checkpoint and a ring.
//
// Built by `python -m perf_gates.gpu.today.build` from an unpacked wheel, once for each P (channels of a head), N (state), T
// (tokens), L (entries of the ring), H (heads) and G (groups). Nothing of FlashInfer is in this file; the parameters are
// filled as its own binding fills them.

#include <cuda_bf16.h>
#include <cuda_fp16.h>
#include <cuda_fp8.h>

#include <cstdint>
#include <cstdio>
#include <exception>

using state_t = float;
using input_t = nv_bfloat16;
using dt_t = nv_bfloat16;
using weight_t = nv_bfloat16;
using matrixA_t = float;
using stateIndex_t = int32_t;
using state_scale_t = void;
constexpr int DIM = PEER_P;
constexpr int DSTATE = PEER_N;
constexpr int NPREDICTED = PEER_T;
constexpr int MAX_WINDOW = PEER_L - PEER_T;
constexpr int HEADS_PER_GROUP = PEER_H / PEER_G;
constexpr int NGROUPS = PEER_G;
constexpr int PHILOX_ROUNDS = 0;
constexpr bool ENABLE_PDL = false;

#include <flashinfer/mamba/checkpointing_ssu.cuh>
#include <flashinfer/mamba/launch_checkpointing_ssu.cuh>

namespace ring = flashinfer::mamba::checkpointing;

struct Arguments {
  int batch, slots, split, stages;  // split: programs of a head; stages: 0 is its own choice
  void *state, *x, *dt, *bias, *A, *B, *C, *D, *out, *x_cache, *B_cache, *dt_cache, *start, *held, *index;
  void *cb, *sums, *cb_old;  // room for the two kernels; null for one kernel
};

// Returns 0, or 1 with what was wrong in `said`.
extern "C" __attribute__((visibility("default"))) int flashinfer_ring(Arguments const* a, void* stream, char* said,
                                                                      int room) {
  constexpr int64_t inner = int64_t(PEER_H) * DIM, grouped = int64_t(PEER_G) * DSTATE;
  try {
    ring::CheckpointingSsuParams p;
    p.batch = a->batch;
    p.nheads = PEER_H;
    p.dim = DIM;
    p.dstate = DSTATE;
    p.ngroups = PEER_G;
    p.state_cache_size = a->slots;
    p.npredicted = NPREDICTED;
    p.max_window = MAX_WINDOW;
    p.d_split = a->split;
    p.dt_softplus = true;
    p.state = a->state;
    p.x = a->x;
    p.dt = a->dt;
    p.dt_bias = a->bias;
    p.A = a->A;
    p.B = a->B;
    p.C = a->C;
    p.D = a->D;
    p.output = a->out;
    p.x_cache = a->x_cache;
    p.B_cache = a->B_cache;
    p.dt_cache = a->dt_cache;
    p.ring_start = a->start;
    p.prev_num_accepted = a->held;
    p.ring_buffer_len = PEER_L;
    p.state_batch_indices = a->index;
    p.cb_scaled = a->cb;
    p.cumAdt_vec = a->sums;
    p.cb_old = a->cb_old;
    p.state_stride_seq = inner * DSTATE;
    p.x_stride_seq = p.out_stride_seq = inner * NPREDICTED;
    p.x_stride_token = p.out_stride_token = inner;
    p.dt_stride_seq = int64_t(PEER_H) * NPREDICTED;
    p.dt_stride_token = PEER_H;
    p.B_stride_seq = p.C_stride_seq = grouped * NPREDICTED;
    p.B_stride_token = p.C_stride_token = grouped;
    p.x_cache_stride_pos = DIM;
    p.x_cache_stride_head = int64_t(PEER_L) * DIM;
    p.x_cache_stride_seq = inner * PEER_L;
    p.B_cache_stride_pos = DSTATE;
    p.B_cache_stride_group = int64_t(PEER_L) * DSTATE;
    p.B_cache_stride_seq = grouped * PEER_L;
    p.dt_cache_stride_head = PEER_L;
    p.dt_cache_stride_seq = int64_t(PEER_H) * PEER_L;
    ring::launchCheckpointingSsu<input_t, dt_t, weight_t, matrixA_t, state_t, stateIndex_t, state_scale_t>(
        p, 0, a->stages, 0, static_cast<cudaStream_t>(stream));
  } catch (std::exception const& error) {
    std::snprintf(said, room, "%s", error.what());
    return 1;
  }
  return 0;
}
