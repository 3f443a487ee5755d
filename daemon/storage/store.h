// One storage root, as rooms above see it: small records created exclusively, large parts written and read in parallel.
//
// Names are relative to the root ("job/step-0000001000.a0003/manifest.json"); room format makes them. Nothing here ever
// replaces a name. When a call that writes returned OK, its effect survives a power failure of the node.
//
// Every call blocks as long as the storage does, and a hung server can hold it for ever: call from executor threads,
// never from the control thread, and put the deadline where the answer is awaited. A Store may be used by any thread; a
// PartWriter or PartReader by one.
//
// A file is dead after a failed write, fsync, close or link: its content on the disk is unknown, and a second fsync
// would lie. Write everything anew from memory: OpenForWrite and CreateExclusive take a new file by themselves.
//
// Errors: absl::StatusCode::kAlreadyExists for a name that is taken, NOT_FOUND, STORAGE_FULL, STORAGE_READ_ONLY,
// STORAGE_IO, PERMISSION, CORRUPT (memory of a slot vanished while it was written: its file was truncated).
#ifndef CKPTD_DAEMON_STORAGE_STORE_H_
#define CKPTD_DAEMON_STORAGE_STORE_H_

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "absl/status/status.h"
#include "absl/status/statusor.h"
#include "absl/strings/string_view.h"
#include "daemon/os/files.h"

namespace ckptd {

// A part on its way to the storage. Invisible under its name until Finish; dropped without Finish, it leaves nothing.
class PartWriter {
 public:
  virtual ~PartWriter() = default;

  // Queues the write of `bytes` at `offset`; waits only while the queue is full. `bytes` stay valid and unchanged until
  // Finish returned or the writer is gone. Chunks come in any order, once each, and cover [0, size). With direct I/O
  // (part size a multiple of kDirectAlignment) address, offset and length are multiples of kDirectAlignment.
  // After an error every later call returns that error: the file is dead.
  [[nodiscard]] virtual absl::Status Write(uint64_t offset, std::span<const std::byte> bytes) = 0;

  // All bytes written and durable, still under no name: for whoever gives something up for it. Finish follows.
  [[nodiscard]] virtual absl::Status Sync() = 0;

  // All bytes written, durable, and visible under the final name. kAlreadyExists: somebody published that name before
  // (it is durable then, and what was written here is gone). Any other error: the file is dead. Once.
  [[nodiscard]] virtual absl::Status Finish() = 0;
};

class PartReader {
 public:
  virtual ~PartReader() = default;
  [[nodiscard]] virtual uint64_t size() const = 0;

  // Called on the reading thread for each piece when its bytes have arrived; an error stops the read and is returned.
  using OnPiece = std::function<absl::Status(uint64_t offset, std::span<std::byte> bytes)>;

  // Reads [offset, offset + memory.size()) with many requests in flight, in pieces of `piece_bytes` (the last may be
  // shorter), handed on in order of arrival. Direct I/O where all is aligned to kDirectAlignment. Beyond the end of the
  // part: CORRUPT.
  [[nodiscard]] virtual absl::Status Read(uint64_t offset, std::span<std::byte> memory, size_t piece_bytes,
                                          const OnPiece& on_piece) = 0;

  // Reads [offset, offset + length) through a small buffer of the store, with several requests in flight: pieces of at
  // most 1 MiB, in the order of the file, each valid only during its call.
  [[nodiscard]] virtual absl::Status Scan(uint64_t offset, uint64_t length, const OnPiece& on_piece) = 0;
};

class Store {
 public:
  virtual ~Store() = default;

  // Looks whether the root is there, and what its file system can do. Everything else also works before, in the slower
  // way.
  [[nodiscard]] virtual absl::Status Probe() = 0;

  // A record, atomically: afterwards the name is absent or holds exactly `bytes`. Makes missing directories.
  // kAlreadyExists: another one won; what it wrote is complete and durable.
  [[nodiscard]] virtual absl::Status CreateExclusive(const std::string& name, absl::string_view bytes) = 0;
  // A name that is there becomes durable, whoever gave it: a process that is killed between giving a name and its fsync
  // leaves one that everybody sees and a power failure takes back. For whoever goes on from what a record says. OK for
  // a name that is not there.
  [[nodiscard]] virtual absl::Status Confirm(const std::string& name) = 0;
  [[nodiscard]] virtual absl::StatusOr<std::string> ReadSmall(const std::string& name, size_t max_bytes) = 0;
  // Entries of a directory ("" = the root), sorted by name; a missing directory is empty. Temporary names are left out.
  [[nodiscard]] virtual absl::StatusOr<std::vector<DirEntry>> List(const std::string& directory) = 0;
  [[nodiscard]] virtual absl::StatusOr<FileInfo> Stat(const std::string& name) = 0;

  // A file. A missing one is OK: deletion is repeated after a crash.
  [[nodiscard]] virtual absl::Status Delete(const std::string& name) = 0;
  // An empty directory; a missing one is OK, one that still holds names is an error.
  [[nodiscard]] virtual absl::Status DeleteDirectory(const std::string& directory) = 0;
  // Removes files with our temporary names in `directory` last modified at least `age` ago, by the storage's own clock:
  // what crashed writers left. With an age it makes a file to learn what time it is there.
  // Returns how many. A live writer whose file is removed notices at Finish: its file is dead.
  [[nodiscard]] virtual absl::StatusOr<size_t> RemoveTemporary(const std::string& directory, Nanos age) = 0;

  // Removes the temporary files that earlier, killed processes of this agent left in `directory`. Returns how many.
  [[nodiscard]] virtual absl::StatusOr<size_t> RemoveLeftovers(const std::string& directory) = 0;

  // Makes missing directories and reserves `size` bytes (STORAGE_FULL here, not half way).
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<PartWriter>> OpenForWrite(const std::string& name,
                                                                                 uint64_t size) = 0;
  [[nodiscard]] virtual absl::StatusOr<std::unique_ptr<PartReader>> OpenForRead(const std::string& name) = 0;

  [[nodiscard]] virtual absl::StatusOr<SpaceInfo> Space() = 0;
  // For people: "io_uring, direct".
  [[nodiscard]] virtual std::string Describe() const = 0;
  // As far as it was looked at, its files are written past the page cache.
  [[nodiscard]] virtual bool IsDirect() const = 0;
};

}  // namespace ckptd

#endif  // CKPTD_DAEMON_STORAGE_STORE_H_
