// The C entry points: arguments of older callers, forked children, and exceptions (only running out of memory throws)
// are dealt with here, and nowhere else.
#include <algorithm>
#include <cstring>
#include <new>

#include "client/core/copy/crc32c.h"
#include "client/include/ckpt/ckpt.h"
#include "client/src/failure.h"
#include "client/src/fork.h"
#include "client/src/gate.h"
#include "client/src/handle.h"
#include "client/src/save.h"
#include "client/src/version.h"

namespace {

using ckptd::Fail;
namespace code = ckptd::code;

// Structs grow at the end: the caller's part is taken, the rest is zero.
template <typename Struct>
bool TakeStruct(const Struct* from, Struct* out) {
  *out = Struct{};
  if (from == nullptr || from->struct_bytes < 2 * sizeof(uint32_t)) return false;
  memcpy(out, from, std::min<size_t>(from->struct_bytes, sizeof(Struct)));
  return true;
}

template <typename Struct>
bool GiveStruct(Struct from, Struct* to) {
  if (to == nullptr || to->struct_bytes < 2 * sizeof(uint32_t)) return false;
  from.struct_bytes = to->struct_bytes;
  memcpy(to, &from, std::min<size_t>(to->struct_bytes, sizeof(Struct)));
  return true;
}

int32_t BadStruct(const char* name) {
  return Fail(code::INVALID_ARGUMENT, "%s is null, or its struct_bytes is not set", name);
}

template <typename Body>
ckpt_status Guarded(Body body) noexcept {
  try {
    return body();
  } catch (const std::bad_alloc&) {
    return Fail(code::INTERNAL, "out of memory");
  } catch (...) {
    return Fail(code::INTERNAL, "unexpected exception");
  }
}

template <typename Body>
ckpt_status OnHandle(ckpt* ck, Body body) noexcept {
  if (ck == nullptr) return Fail(code::INVALID_ARGUMENT, "the handle is null");
  if (ck->fork_generation != ckptd::ForkGeneration()) {
    return Fail(code::CANCELLED, "this handle belongs to the process that was forked");
  }
  return Guarded(body);
}

// Of the calls that may be under way in other threads when the handle is closed.
template <typename Body>
ckpt_status FromAnyThread(ckpt* ck, Body body) noexcept {
  return OnHandle(ck, [&] {
    const ckptd::Caller caller(ck->state);
    return caller.late() ? ckptd::FailClosed() : body();
  });
}

}  // namespace

extern "C" {

ckpt_status ckpt_open(const ckpt_options* options, ckpt** out) {
  return Guarded([&] {
    ckpt_options taken;
    if (!TakeStruct(options, &taken)) return BadStruct("options");
    if (out == nullptr) return Fail(code::INVALID_ARGUMENT, "out is null");
    *out = nullptr;
    return ckptd::OpenHandle(taken, out);
  });
}

ckpt_status ckpt_register(ckpt* ck, const ckpt_table* table) {
  return OnHandle(ck, [&] {
    ckpt_table taken;
    if (!TakeStruct(table, &taken)) return BadStruct("table");
    return ckptd::RegisterTable(*ck, taken);
  });
}

ckpt_status ckpt_save(ckpt* ck, uint64_t step, const void* extra, uint64_t extra_bytes, const void* const* data,
                      uint32_t flags) {
  return OnHandle(ck, [&] { return ckptd::StartSave(ck->state, {step, extra, extra_bytes, data, flags}); });
}

ckpt_status ckpt_step(ckpt* ck, uint64_t step, const void* extra, uint64_t extra_bytes, const void* const* data,
                      uint32_t flags, int32_t* saved) {
  return OnHandle(ck, [&] {
    if (saved != nullptr) *saved = 0;
    const ckptd::SaveRequest request = {step, extra, extra_bytes, data, flags};
    if (ck->state.every == 0 || step % ck->state.every != 0) return ckptd::PassStep(ck->state, request);
    int32_t rc = ckptd::StartSave(ck->state, request);
    if (saved != nullptr && rc == 0) *saved = 1;
    return rc;
  });
}

ckpt_status ckpt_unexport(ckpt* ck, uint64_t timeout_ns) {
  return OnHandle(ck, [&] { return ckptd::Unexport(ck->state, timeout_ns); });
}

ckpt_status ckpt_gate(ckpt* ck, uint64_t timeout_ns) {
  return FromAnyThread(ck, [&] { return ckptd::PassGate(ck->state, timeout_ns, nullptr); });
}

ckpt_status ckpt_gate_stream(ckpt* ck, void* stream, uint64_t timeout_ns) {
  return FromAnyThread(ck, [&] { return ckptd::PassGateOnStream(ck->state, stream, timeout_ns); });
}

ckpt_status ckpt_stream(ckpt* ck, int32_t device, void* stream) {
  return OnHandle(ck, [&] { return ckptd::SetCallerStream(ck->state, device, stream); });
}

uint64_t ckpt_torn(ckpt* ck, uint64_t* indices, uint64_t capacity) {
  uint64_t count = 0;
  OnHandle(ck, [&] {
    ckptd::MutexLock lock(ck->state.mutex);
    const ckptd::Capture& capture = ck->state.capture;
    if (capture.busy()) return 0;  // the list belongs to the copy thread
    count = capture.torn.size();
    std::copy_n(capture.torn.begin(), indices != nullptr ? std::min(count, capacity) : 0, indices);
    return 0;
  });
  return count;
}

ckpt_status ckpt_poll(ckpt* ck, uint64_t step, ckpt_step_state* out) {
  return FromAnyThread(ck, [&] {
    ckpt_step_state state = {};
    int32_t rc = ckptd::PollStep(ck->state, step, &state);
    return rc != 0 || GiveStruct(state, out) ? rc : BadStruct("out");
  });
}

ckpt_status ckpt_wait(ckpt* ck, uint64_t step, uint32_t level, uint64_t timeout_ns) {
  return FromAnyThread(ck, [&] {
    const bool still = (level & CKPT_STILL) != 0;
    const uint32_t wanted = level & ~uint32_t{CKPT_STILL};
    if (wanted != CKPT_CAPTURED && wanted != CKPT_PROTECTED && wanted != CKPT_DURABLE) {
      return Fail(code::INVALID_ARGUMENT, "level is %u", level);
    }
    return ckptd::WaitForStep(ck->state, step, wanted, still, timeout_ns);
  });
}

ckpt_status ckpt_restore_begin(ckpt* ck, const ckpt_want* want, ckpt_restored* out) {
  return OnHandle(ck, [&] {
    ckpt_want taken;
    ckpt_restored restored = {};
    if (!TakeStruct(want, &taken)) return BadStruct("want");
    if (!GiveStruct(restored, out)) return BadStruct("out");
    int32_t rc = ck->restore.Begin(taken, &restored);
    if (rc == 0) GiveStruct(restored, out);
    return rc;
  });
}

ckpt_status ckpt_restore_header(ckpt* ck, uint32_t image, const char** json, uint64_t* json_bytes,
                                uint64_t* data_offset) {
  return OnHandle(ck, [&] {
    ckptd::Snapshot* snapshot = ck->restore.snapshot();
    if (snapshot == nullptr || image >= snapshot->headers().size() || json == nullptr || json_bytes == nullptr ||
        data_offset == nullptr) {
      return Fail(code::INVALID_ARGUMENT, "there is no image %u, or an argument is null", image);
    }
    const ckptd::ImageHeader& header = snapshot->headers()[image];
    *json = header.bytes.data() + sizeof(uint64_t);
    *json_bytes = header.bytes.size() - sizeof(uint64_t);
    *data_offset = header.slot_offset + header.bytes.size();
    return 0;
  });
}

ckpt_status ckpt_restore_read(ckpt* ck, const ckpt_box* boxes, uint64_t count) {
  return OnHandle(ck, [&] {
    ckptd::Snapshot* snapshot = ck->restore.snapshot();
    if (snapshot == nullptr) return Fail(code::INVALID_ARGUMENT, "no snapshot is being restored");
    if (boxes == nullptr && count > 0) return Fail(code::INVALID_ARGUMENT, "boxes is null");
    return snapshot->Read(boxes, count, ck->state);
  });
}

ckpt_status ckpt_restore_map(ckpt* ck, const void** address, uint64_t* bytes) {
  return OnHandle(ck, [&] {
    ckptd::Snapshot* snapshot = ck->restore.snapshot();
    if (snapshot == nullptr) return Fail(code::INVALID_ARGUMENT, "no snapshot is being restored");
    if (address == nullptr || bytes == nullptr) return Fail(code::INVALID_ARGUMENT, "an argument is null");
    *bytes = snapshot->bytes();
    return snapshot->Map(address, ck->state);
  });
}

ckpt_status ckpt_restore_end(ckpt* ck, ckpt_status result, const char* reason, ckpt_restored* out) {
  return OnHandle(ck, [&] {
    ckpt_restored restored = {};
    if (result > 0) return Fail(code::INVALID_ARGUMENT, "result is 0 or a negative code");
    int32_t rc = ck->restore.End(result, reason, &restored);
    if (rc == CKPT_RELOAD && !GiveStruct(restored, out)) return BadStruct("out");
    return rc;
  });
}

ckpt_status ckpt_restore_cancel(ckpt* ck) {
  return FromAnyThread(ck, [&] {
    ck->restore.Cancel();
    return 0;
  });
}

const char* ckpt_skipped_why(ckpt* ck, uint32_t index) {
  const char* why = "";
  OnHandle(ck, [&] {
    why = ck->restore.Why(index);
    return 0;
  });
  return why;
}

ckpt_status ckpt_info(ckpt* ck, ckpt_info_view* out) {
  return FromAnyThread(ck, [&] {
    ckpt_info_view view = {};
    ckptd::FillInfo(ck->state, &view);
    return GiveStruct(view, out) ? 0 : BadStruct("out");
  });
}

ckpt_status ckpt_close(ckpt* ck, uint64_t timeout_ns) {
  return OnHandle(ck, [&] { return ckptd::CloseHandle(ck, timeout_ns); });
}

uint32_t ckpt_crc32c(uint32_t crc, const void* data, uint64_t bytes) { return ckptd::Crc32c(crc, data, bytes); }

const char* ckpt_error(void) { return ckptd::LastSentence(); }

const char* ckpt_code_name(ckpt_status status) { return ckptd::CodeName(status < 0 ? -status : status); }

const char* ckpt_next_step(ckpt_status status) { return ckptd::CodeNextStep(status < 0 ? -status : status); }

const char* ckpt_version(void) { return ckptd::kLibraryVersion; }

}  // extern "C"
