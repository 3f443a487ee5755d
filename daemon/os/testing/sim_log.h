// What sim_files records, and what a disk may hold of it after a power failure.
#ifndef CKPTD_DAEMON_OS_TESTING_SIM_LOG_H_
#define CKPTD_DAEMON_OS_TESTING_SIM_LOG_H_

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "daemon/os/files.h"

namespace ckptd::sim {

using InodeId = uint64_t;
inline constexpr InodeId kRoot = 1;
inline constexpr uint64_t kBlock = 4096;

struct Inode {
  FileType type = FileType::kRegular;
  uint32_t mode = 0;
  std::string content{};                     // of a file
  std::map<std::string, InodeId> entries{};  // of a directory
  mutable uint64_t hash = 0;                 // of content; 0 = not computed yet
};

// Trees share the inodes in which they do not differ: a disk image costs what is uncertain on it, not what it holds.
class Tree {
 public:
  using Inodes = std::map<InodeId, std::shared_ptr<Inode>>;

  [[nodiscard]] const Inode& at(InodeId id) const { return *inodes_.at(id); }
  [[nodiscard]] const std::shared_ptr<Inode>& Share(InodeId id) const { return inodes_.at(id); }
  [[nodiscard]] Inodes::const_iterator begin() const { return inodes_.begin(); }
  [[nodiscard]] Inodes::const_iterator end() const { return inodes_.end(); }
  [[nodiscard]] bool contains(InodeId id) const { return inodes_.contains(id); }
  void Put(InodeId id, std::shared_ptr<Inode> inode) { inodes_[id] = std::move(inode); }
  // To be changed: a copy of its own where another tree has it too.
  [[nodiscard]] Inode& Edit(InodeId id);

 private:
  Inodes inodes_;
};

struct MakeInode {
  FileType type;
  uint32_t mode;
};

struct Op {
  enum Kind { kEntry, kWrite, kSize, kSync, kSyncFailed };
  Kind kind = kEntry;
  InodeId inode = 0;                // the file, or the directory of an entry
  std::string name{};               // kEntry
  std::optional<InodeId> target{};  // kEntry: what the name now names; empty = removed
  std::optional<MakeInode> make{};  // kEntry: `target` is new
  uint64_t offset = 0;              // kWrite
  uint64_t size = 0;                // kSize: the file is at least this long
  std::string data{};               // kWrite
  std::string text{};               // for people
};

// The operation as the living system sees it.
void Apply(Tree& tree, const Op& op);

// 64 bits of content, the same in every process.
[[nodiscard]] uint64_t HashBytes(absl::string_view bytes);
[[nodiscard]] uint64_t ContentHash(const Inode& file);
// Names, contents and hard links below the root. Names that `anonymous` accepts count as one name: they were chosen at
// random, and two disks that differ in them only are the same state.
[[nodiscard]] uint64_t HashOf(const Tree& tree, const std::function<bool(const std::string&)>& anonymous);

// Which of the uncertain pieces are on the disk.
class Lot {
 public:
  // Seed 0 keeps nothing, 1 all; any other a random half.
  explicit Lot(uint64_t seed) : state_(seed), kind_(seed <= 1 ? Kind::kSame : Kind::kRandom) {}
  // Piece i is on the disk when bit i is set: each number below 2^Uncertain() is a subset of its own.
  [[nodiscard]] static Lot Subset(uint64_t bits);
  [[nodiscard]] bool Keep();

 private:
  enum class Kind : uint8_t { kSame, kRandom, kBits };
  uint64_t state_;
  Kind kind_;
};

// A disk while operations come in: what is durable of each inode, and what is uncertain. Uncertain pieces are
// independent of each other: each 4 KiB block of each write, each change of size, each directory entry.
class Disk {
 public:
  explicit Disk(Tree base) : tree_(std::move(base)) {}

  void Play(Op op);
  // Independent pieces: 2^Uncertain() subsets.
  [[nodiscard]] size_t Uncertain() const;
  // What it may hold if the power fails now. Only what can be reached from the root is in it.
  [[nodiscard]] Tree Fail(Lot lot) const;

 private:
  struct Piece {
    Op op;
    // After a failed fsync the kernel forgets what was dirty: each piece is on the disk or lost, and no later fsync
    // changes that.
    bool forgotten = false;
    bool certain = false;  // synced, behind a forgotten one
  };

  void PushBlock(const Op& op, uint64_t& begin);
  void Settle(InodeId id);
  [[nodiscard]] std::shared_ptr<Inode> Maybe(InodeId id, const std::vector<Piece>& pieces, Lot& lot) const;

  Tree tree_;
  std::map<InodeId, std::vector<Piece>> pending_;
};

}  // namespace ckptd::sim

#endif  // CKPTD_DAEMON_OS_TESTING_SIM_LOG_H_
