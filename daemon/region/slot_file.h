// One slot file: the bytes of one slot, on tmpfs.
//
// The trainer maps it and may truncate it at any time. The agent therefore never touches its bytes through a mapping:
// it reads and writes by descriptor, where a short file is an error, and maps it only as source or target of direct
// I/O, where the kernel answers EFAULT.
//
// Shared by those who read it (flush, verification, restore): an unlinked file keeps its bytes, and its share of the
// quota, until the last of them lets go: whoever only looks does that when it is unlinked. Read, Write, Map and
// unlinked may be called by any thread.
//
// Memory that goes back takes the kernel 0.09 s for each GiB of small pages. So whoever lets go of it last does not
// wait for that: an executor frees it, and the quota holds it until then, as leaving. The name goes before. So after a
// kill nothing is left to be found: what was not free yet goes with the process, or with the last trainer that has it
// open, and the tmpfs counts it until then.
#ifndef CKPTD_DAEMON_REGION_SLOT_FILE_H_
#define CKPTD_DAEMON_REGION_SLOT_FILE_H_

#include <atomic>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/base/executor.h"
#include "daemon/os/files.h"
#include "daemon/os/mapping.h"
#include "daemon/region/quota.h"

namespace ckptd::region {

[[nodiscard]] std::string SlotFileName(uint64_t file_id);

class SlotFile {
 public:
  // A new, empty file with a random id; nothing reserved yet (Extend, Reserve). Its memory is freed by `freeing`, which
  // outlives it; null, full or stopped: at once, by whoever lets go.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<SlotFile>> Create(Files& files, const std::string& rank_dir,
                                                                        uint64_t size, QuotaHold hold,
                                                                        Executor* freeing = nullptr);
  // A file of a predecessor. CORRUPT when it is no regular file of `size` bytes.
  [[nodiscard]] static absl::StatusOr<std::shared_ptr<SlotFile>> Open(Files& files, const std::string& rank_dir,
                                                                      uint64_t file_id, uint64_t size, QuotaHold hold,
                                                                      Executor* freeing = nullptr);
  ~SlotFile();

  // Gives it its size, and memory for its end only: it can be mapped.
  [[nodiscard]] absl::Status Extend();
  // Reserves all of it: zeros that can be written without ever failing. REGION_FULL when the tmpfs has too little.
  [[nodiscard]] absl::Status Reserve();
  // CORRUPT when the trainer has changed the file's size.
  [[nodiscard]] absl::Status CheckSize() const;

  // All of `bytes`; CORRUPT when the file ends before.
  [[nodiscard]] absl::Status Read(uint64_t offset, std::span<std::byte> bytes) const;
  [[nodiscard]] absl::Status Write(uint64_t offset, std::span<const std::byte> bytes);
  // Source (read-only) or target of direct I/O; never to be touched by the CPU.
  [[nodiscard]] absl::StatusOr<Mapping> Map(MapAccess access) const;

  // All of it read-only, mapped at the first call and as long as this lives: a fresh mapping for each flush would fault
  // in every page again. One thread.
  [[nodiscard]] absl::StatusOr<std::span<const std::byte>> ReadOnlyBytes();

  // Removes the name, and the memory goes back though somebody may have the file mapped. Only for a file that nobody
  // writes any more: what is written later would take memory again.
  static void Discard(const std::shared_ptr<SlotFile>& file);
  // Removes the name; idempotent. The bytes stay as long as somebody has the file open or mapped.
  void Unlink();
  [[nodiscard]] bool unlinked() const { return unlinked_.load(std::memory_order_relaxed); }

  [[nodiscard]] uint64_t file_id() const { return file_id_; }
  [[nodiscard]] uint64_t size() const { return size_; }
  [[nodiscard]] const std::string& path() const { return path_; }
  // To be passed to a trainer; owned by this.
  [[nodiscard]] int write_fd() const { return writable_->fd(); }
  [[nodiscard]] int read_fd() const { return readable_->fd(); }

 private:
  SlotFile(Files& files, std::string path, uint64_t file_id, uint64_t size, QuotaHold hold, Executor* freeing)
      : files_(files),
        freeing_(freeing),
        path_(std::move(path)),
        file_id_(file_id),
        size_(size),
        hold_(std::move(hold)) {}
  static std::shared_ptr<SlotFile> Make(Files& files, const std::string& rank_dir, uint64_t file_id, uint64_t size,
                                        QuotaHold hold, Executor* freeing);
  static void Free(SlotFile* file);
  absl::Status OpenDescriptors(bool create);
  void Punch();

  Files& files_;
  Executor* const freeing_;
  const std::string path_;
  const uint64_t file_id_;
  const uint64_t size_;
  QuotaHold hold_;  // before what has the memory: given back after it
  std::unique_ptr<File> writable_;
  std::unique_ptr<File> readable_;
  std::optional<Mapping> mapping_;  // of ReadOnlyBytes
  std::atomic<bool> unlinked_{false};
};

}  // namespace ckptd::region

#endif  // CKPTD_DAEMON_REGION_SLOT_FILE_H_
