// FlashInfer's selective_state_update as plain C functions: one token, or a window that keeps every state.
//
// Built by `python -m perf_gates.gpu.today.build` from an unpacked wheel, once for each P (channels of a head), N (state) and
// T (tokens). Nothing of FlashInfer is in this file; the parameters are filled as its own binding fills them.

#include <cuda_bf16.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstdio>
#include <exception>

using state_t = float;
using input_t = nv_bfloat16;
using weight_t = nv_bfloat16;
using matrixA_t = float;
using stateIndex_t = int32_t;
using cuSeqlensIndex_t = int32_t;
using numAcceptedIndex_t = int32_t;
using state_scale_t = void;
constexpr int DIM = PEER_P;
constexpr int DSTATE = PEER_N;
constexpr int NTOKENS_MTP = PEER_T;
constexpr int PHILOX_ROUNDS = 0;

#include <flashinfer/mamba/selective_state_update.cuh>

namespace ssu = flashinfer::mamba;

struct Arguments {
  int batch, heads, groups, slots;
  void *state, *x, *dt, *bias, *A, *B, *C, *D, *out, *index;
  void *middle, *middle_index;  // the state after every token, and its place for each row; null for one token
};

static void fill(ssu::SelectiveStateUpdateParams& p, Arguments const& a) {
  int64_t const inner = int64_t(a.heads) * DIM, grouped = int64_t(a.groups) * DSTATE;
  p.batch = a.batch;
  p.nheads = a.heads;
  p.dim = DIM;
  p.dstate = DSTATE;
  p.ngroups = a.groups;
  p.state_cache_size = a.slots;
  p.dt_softplus = true;
  p.x_stride_batch = p.out_stride_batch = inner * NTOKENS_MTP;
  p.dt_stride_batch = int64_t(a.heads) * NTOKENS_MTP;
  p.B_stride_batch = p.C_stride_batch = grouped * NTOKENS_MTP;
  p.state_stride_batch = inner * DSTATE;
  p.state = a.state;
  p.x = a.x;
  p.dt = a.dt;
  p.dt_bias = a.bias;
  p.A = a.A;
  p.B = a.B;
  p.C = a.C;
  p.D = a.D;
  p.output = a.out;
  p.state_batch_indices = a.index;
}

// Returns 0, or 1 with what was wrong in `said`.
extern "C" __attribute__((visibility("default"))) int flashinfer_step(Arguments const* a, void* stream, char* said,
                                                                      int room) {
  try {
    auto const on = static_cast<cudaStream_t>(stream);
#if PEER_T == 1
    ssu::SelectiveStateUpdateParams p;
    fill(p, *a);
    ssu::invokeSelectiveStateUpdate<input_t, weight_t, matrixA_t, state_t, stateIndex_t, state_scale_t>(
        p, ssu::SSUAlgorithm::kAuto, on);
#else
    ssu::mtp::SelectiveStateMTPParams p;
    fill(p, *a);
    p.ntokens_mtp = p.cache_steps = NTOKENS_MTP;
    p.update_state = false;
    p.x_stride_mtp = p.out_stride_mtp = int64_t(a->heads) * DIM;
    p.dt_stride_mtp = a->heads;
    p.B_stride_mtp = p.C_stride_mtp = int64_t(a->groups) * DSTATE;
    p.intermediate_states = a->middle;
    p.intermediate_state_stride_batch = int64_t(NTOKENS_MTP) * a->heads * DIM * DSTATE;
    p.intermediate_state_indices = a->middle_index;
    ssu::mtp::invokeSelectiveStateUpdateMTP<input_t, weight_t, matrixA_t, state_t, stateIndex_t, state_scale_t>(
        p, ssu::SSUAlgorithm::kAuto, on);
#endif
  } catch (std::exception const& error) {
    std::snprintf(said, room, "%s", error.what());
    return 1;
  }
  return 0;
}
