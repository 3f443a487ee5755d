// RAII over ckpt.h, nothing more. Header only, C++17. Every failure is an exception of type ckpt_cpp::Error (the name
// ckpt is the handle of the C interface), except where a method returns the status: a dropped save must not stop
// training.
#ifndef CKPT_CKPT_HPP_
#define CKPT_CKPT_HPP_

#include <ckpt/ckpt.h>

#include <chrono>
#include <cstdint>
#include <stdexcept>
#include <string>
#include <utility>
#include <vector>

namespace ckpt_cpp {

class Error : public std::runtime_error {
 public:
  explicit Error(ckpt_status status)
      : std::runtime_error(std::string(ckpt_code_name(status)) + ": " + ckpt_error()), status_(status) {}
  [[nodiscard]] ckpt_status status() const noexcept { return status_; }

 private:
  ckpt_status status_;
};

inline void Check(ckpt_status status) {
  if (status < 0) throw Error(status);
}

// A table of tensors under construction. The addresses must stay valid as ckpt_register says; texts are copied.
class Table {
 public:
  void Add(const std::string& name, uint8_t dtype, const std::vector<uint64_t>& shape, const void* data,
           uint8_t flags = 0) {
    names_ += name;
    name_ends_.push_back(names_.size());
    dtypes_.push_back(dtype);
    dims_.push_back(static_cast<uint32_t>(shape.size()));
    shapes_.insert(shapes_.end(), shape.begin(), shape.end());
    data_.push_back(data);
    flags_.push_back(flags);
  }

  // Another name of tensor `of`, counted in the order of Add.
  void AddAlias(const std::string& name, uint64_t of) {
    aliases_ += name;
    alias_ends_.push_back(aliases_.size());
    alias_of_.push_back(of);
  }

  // What ckpt_save takes as `data`.
  [[nodiscard]] const void* const* data() const noexcept { return data_.data(); }

  // Points into this object.
  [[nodiscard]] ckpt_table View(uint64_t extra_bytes = 0) const noexcept {
    ckpt_table table = {};
    table.struct_bytes = sizeof table;
    table.count = name_ends_.size();
    table.names = names_.data();
    table.name_ends = name_ends_.data();
    table.dtypes = dtypes_.data();
    table.dims = dims_.data();
    table.shapes = shapes_.data();
    table.data = data_.data();
    table.flags = flags_.data();
    table.alias_count = alias_ends_.size();
    table.aliases = aliases_.data();
    table.alias_ends = alias_ends_.data();
    table.alias_of = alias_of_.data();
    table.extra_bytes = extra_bytes;
    return table;
  }

 private:
  std::string names_;
  std::vector<uint64_t> name_ends_;
  std::vector<uint8_t> dtypes_;
  std::vector<uint32_t> dims_;
  std::vector<uint64_t> shapes_;
  std::vector<const void*> data_;
  std::vector<uint8_t> flags_;
  std::string aliases_;
  std::vector<uint64_t> alias_ends_;
  std::vector<uint64_t> alias_of_;
};

// Owns a handle; closes it without waiting unless Close was called.
class Checkpointer {
 public:
  using Nanoseconds = std::chrono::nanoseconds;

  explicit Checkpointer(const std::string& job, uint32_t rank = 0, uint32_t world = 1, uint32_t every = 0,
                        const std::string& socket = "", Nanoseconds gate_timeout = Nanoseconds(0)) {
    ckpt_options options = {};
    options.struct_bytes = sizeof options;
    options.rank = rank;
    options.world = world;
    options.every = every;
    options.job = job.c_str();
    options.socket = socket.empty() ? nullptr : socket.c_str();
    options.gate_timeout_ns = static_cast<uint64_t>(gate_timeout.count());
    Check(ckpt_open(&options, &handle_));
  }
  Checkpointer(const Checkpointer&) = delete;
  Checkpointer& operator=(const Checkpointer&) = delete;
  Checkpointer(Checkpointer&& other) noexcept : handle_(std::exchange(other.handle_, nullptr)) {}
  Checkpointer& operator=(Checkpointer&& other) noexcept {
    std::swap(handle_, other.handle_);
    return *this;
  }
  ~Checkpointer() { Close(Nanoseconds(0)); }

  [[nodiscard]] ckpt* get() const noexcept { return handle_; }

  // `timeout` is for the decision of all ranks, not for reading what was decided: see ckpt_restore_begin.
  ckpt_restored RestoreBegin(uint32_t want = CKPT_WANT_NEWEST, uint64_t step = 0,
                             Nanoseconds timeout = Nanoseconds(0)) {
    ckpt_want wish = {sizeof(ckpt_want), want, step, static_cast<uint64_t>(timeout.count()), 0};
    ckpt_restored restored = {};
    restored.struct_bytes = sizeof restored;
    Check(ckpt_restore_begin(handle_, &wish, &restored));
    return restored;
  }
  // The status of the read: to be passed to RestoreEnd.
  [[nodiscard]] ckpt_status RestoreRead(const std::vector<ckpt_box>& boxes) {
    return ckpt_restore_read(handle_, boxes.data(), boxes.size());
  }
  // True: train from *restored. False: load again what *restored now says.
  bool RestoreEnd(ckpt_status result, const std::string& reason, ckpt_restored* restored) {
    ckpt_status status = ckpt_restore_end(handle_, result, reason.c_str(), restored);
    Check(status);
    return status != CKPT_RELOAD;
  }

  // Any thread: a RestoreBegin or RestoreEnd that waits ends with CANCELLED.
  void RestoreCancel() { Check(ckpt_restore_cancel(handle_)); }

  // Why restored->skipped[index] was passed over; empty where nobody says.
  [[nodiscard]] std::string SkippedWhy(uint32_t index) const { return ckpt_skipped_why(handle_, index); }

  void Register(const Table& table, uint64_t extra_bytes = 0) {
    ckpt_table view = table.View(extra_bytes);
    Check(ckpt_register(handle_, &view));
  }
  ckpt_status Save(uint64_t step, const std::string& extra = "", const void* const* data = nullptr,
                   uint32_t flags = 0) {
    return ckpt_save(handle_, step, extra.data(), extra.size(), data, flags);
  }
  ckpt_status Gate(Nanoseconds timeout = Nanoseconds(0)) {
    return ckpt_gate(handle_, static_cast<uint64_t>(timeout.count()));
  }
  ckpt_status Wait(uint64_t step, uint32_t level, Nanoseconds timeout) {
    return ckpt_wait(handle_, step, level, static_cast<uint64_t>(timeout.count()));
  }
  [[nodiscard]] ckpt_step_state Poll(uint64_t step) const {
    ckpt_step_state state = {};
    state.struct_bytes = sizeof state;
    Check(ckpt_poll(handle_, step, &state));
    return state;
  }
  [[nodiscard]] ckpt_info_view Info() const {
    ckpt_info_view view = {};
    view.struct_bytes = sizeof view;
    Check(ckpt_info(handle_, &view));
    return view;
  }
  // 0 = the last save is on storage, or there was none.
  ckpt_status Close(Nanoseconds timeout) {
    ckpt* handle = std::exchange(handle_, nullptr);
    return handle == nullptr ? 0 : ckpt_close(handle, static_cast<uint64_t>(timeout.count()));
  }

 private:
  ckpt* handle_ = nullptr;
};

}  // namespace ckpt_cpp

#endif  // CKPT_CKPT_HPP_
