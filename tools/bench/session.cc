#include "tools/bench/session.h"

#include <cstdlib>
#include <thread>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_format.h"
#include "daemon/base/errors.h"
#include "daemon/base/status_macros.h"
#include "tools/bench/measure.h"

namespace ckptd::bench {
namespace {

bool IsWorthAnotherTry(const absl::Status& status) {
  ErrorCode code = CodeOf(status);
  return code == ErrorCode::NO_FREE_SLOT || code == ErrorCode::BELOW_FLOOR || code == ErrorCode::LAYOUT_PREPARING;
}

// What a ckpt_table of these tensors points to.
struct TableParts {
  explicit TableParts(const Tensors& tensors)
      : count(tensors.addresses.size()),
        dtypes(count, CKPT_U64),
        flags(count, tensors.flags),
        dims(count, 1),
        shapes(count, tensors.bytes_each / sizeof(uint64_t)) {
    for (uint64_t i = 0; i < count; ++i) {
      names += TensorName(i);
      ends.push_back(names.size());
    }
  }

  [[nodiscard]] ckpt_table TableOf(const Tensors& tensors) const {
    ckpt_table table = {};
    table.struct_bytes = sizeof table;
    table.count = count;
    table.names = names.data();
    table.name_ends = ends.data();
    table.dtypes = dtypes.data();
    table.dims = dims.data();
    table.shapes = shapes.data();
    table.flags = flags.data();
    table.data = tensors.addresses.data();
    return table;
  }

  uint64_t count;
  std::string names;
  std::vector<uint64_t> ends;
  std::vector<uint8_t> dtypes;
  std::vector<uint8_t> flags;
  std::vector<uint32_t> dims;
  std::vector<uint64_t> shapes;
};

void Rest() { std::this_thread::sleep_for(std::chrono::milliseconds(1)); }

}  // namespace

absl::Status StatusOf(ckpt_status status) {
  if (status >= 0) return absl::OkStatus();
  return Error(static_cast<ErrorCode>(-status), ckpt_error());
}

absl::StatusOr<ckpt*> Open(const Place& place) {
  ckpt_options options = {};
  options.struct_bytes = sizeof options;
  options.rank = place.rank;
  options.world = place.world;
  options.job = "bench";
  options.socket = place.socket.c_str();
  options.gpu_path = place.gpu_path;
  ckpt* handle = nullptr;
  CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_open(&options, &handle)));
  return handle;
}

std::string TensorName(uint64_t number) { return absl::StrFormat("layer.%07d", number); }

absl::StatusOr<Registered> Register(ckpt* handle, const Tensors& tensors) {
  const TableParts parts(tensors);
  const ckpt_table table = parts.TableOf(tensors);
  Registered registered;
  TimePoint begin = Now();
  CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_register(handle, &table)));
  registered.call_seconds = SecondsSince(begin);
  CKPTD_RETURN_IF_ERROR(AwaitInfo(handle, "the agent's memory", [](const ckpt_info_view& info) -> absl::StatusOr<bool> {
    if (info.last_code != 0) return Error(static_cast<ErrorCode>(std::abs(info.last_code)), info.last_sentence);
    return info.ready != 0;
  }));
  registered.ready_seconds = SecondsSince(begin);
  return registered;
}

absl::Status Read(ckpt* handle, const ckpt_restored& from, const Tensors& tensors) {
  const char* json = nullptr;
  uint64_t json_bytes = 0;
  uint64_t at = 0;
  CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_restore_header(handle, 0, &json, &json_bytes, &at)));
  if (from.image_count != 1) return Error(ErrorCode::INTERNAL, "the state has several images");
  std::vector<ckpt_box> boxes;
  for (const void* address : tensors.addresses) {
    boxes.push_back({const_cast<void*>(address), at, tensors.bytes_each, tensors.flags & uint64_t{CKPT_DEVICE}});
    at += tensors.bytes_each;
  }
  return StatusOf(ckpt_restore_read(handle, boxes.data(), boxes.size()));
}

absl::Status AwaitInfo(ckpt* handle, const std::string& waited_for,
                       const std::function<absl::StatusOr<bool>(const ckpt_info_view&)>& done) {
  TimePoint begin = Now();
  for (;; Rest()) {  // libckpt tells this only when asked
    ckpt_info_view info = {};
    info.struct_bytes = sizeof info;
    CKPTD_RETURN_IF_ERROR(StatusOf(ckpt_info(handle, &info)));
    CKPTD_ASSIGN_OR_RETURN(bool is_done, done(info));
    if (is_done) return absl::OkStatus();
    if (Now() - begin > kPatience) {
      return Error(ErrorCode::TIMEOUT, absl::StrCat(waited_for, ": not there after ", kPatience.count(), " s"));
    }
  }
}

absl::Status KeepTrying(const std::function<absl::Status()>& save) {
  TimePoint first = Now();
  for (;; Rest()) {
    absl::Status tried = save();
    if (tried.ok() || !IsWorthAnotherTry(tried) || Now() - first > kPatience) return tried;
  }
}

}  // namespace ckptd::bench
