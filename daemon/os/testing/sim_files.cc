#include "daemon/os/testing/sim_files.h"

#include <algorithm>
#include <cerrno>
#include <cstdint>
#include <iterator>
#include <utility>

#include "absl/strings/str_cat.h"
#include "absl/strings/str_split.h"
#include "daemon/base/status_macros.h"
#include "daemon/os/testing/sim_log.h"

namespace ckptd {

using sim::Inode;
using sim::InodeId;
using sim::Op;

struct SimState {
  sim::Tree base;  // durable at the start of the log
  sim::Tree live;
  std::vector<Op> log;
  InodeId next_inode = sim::kRoot + 1;
  size_t calls = 0;
  size_t fail_at = SIZE_MAX;
  int fail_error = 0;
  size_t syncs = 0;
  std::set<size_t> drop_syncs;
  uint64_t free = UINT64_MAX;
  size_t kill_at = SIZE_MAX;
  bool replace = false;
  bool links = true;
  bool renames = true;
  bool lose_link_reply = false;
  size_t open_files = 0;

  void Do(Op op) {
    if (op.kind != Op::kSync && op.kind != Op::kSyncFailed) sim::Apply(live, op);
    log.push_back(std::move(op));
  }

  absl::Status Call(absl::string_view operation, const std::string& path) {
    if (log.size() >= kill_at) return FileError(EIO, operation, path);
    if (calls++ != fail_at) return absl::OkStatus();
    return FileError(fail_error, operation, path);
  }

  absl::Status Sync(InodeId inode, const std::string& path) {
    absl::Status injected = Call("fsync", path);
    if (!injected.ok() && log.size() >= kill_at) return injected;
    if (!injected.ok()) {
      Do({.kind = Op::kSyncFailed, .inode = inode, .text = absl::StrCat("failed fsync ", path)});
      return injected;
    }
    if (!drop_syncs.contains(syncs++)) Do({.kind = Op::kSync, .inode = inode, .text = absl::StrCat("fsync ", path)});
    return absl::OkStatus();
  }

  absl::Status Allocate(InodeId inode, uint64_t size, absl::string_view operation, const std::string& path) {
    const uint64_t has = live.at(inode).content.size();
    const uint64_t more = size > has ? size - has : 0;
    if (more > free) return FileError(ENOSPC, operation, path);
    if (free != UINT64_MAX) free -= more;
    return absl::OkStatus();
  }

  absl::StatusOr<InodeId> Find(const std::string& path) const {
    InodeId id = sim::kRoot;
    for (absl::string_view name : absl::StrSplit(path, '/', absl::SkipEmpty())) {
      const Inode& inode = live.at(id);
      if (inode.type != FileType::kDirectory) return FileError(ENOTDIR, "find", path);
      auto entry = inode.entries.find(std::string(name));
      if (entry == inode.entries.end()) return FileError(ENOENT, "find", path);
      id = entry->second;
    }
    return id;
  }

  absl::StatusOr<InodeId> FindDirectory(const std::string& path) const {
    CKPTD_ASSIGN_OR_RETURN(InodeId id, Find(path));
    if (live.at(id).type != FileType::kDirectory) return FileError(ENOTDIR, "find", path);
    return id;
  }

  // The directory in which `path` may become a new name.
  absl::StatusOr<InodeId> FindFree(absl::string_view operation, const std::string& path) const {
    CKPTD_ASSIGN_OR_RETURN(InodeId parent, FindDirectory(ParentOf(path)));
    const bool replaced = replace && (operation == "link" || operation == "rename");
    if (!replaced && Find(path).ok()) return FileError(EEXIST, operation, path);
    return parent;
  }

  uint64_t LinksTo(InodeId id) const {
    uint64_t links = 0;
    for (const auto& [directory, inode] : live) {
      for (const auto& [name, target] : inode->entries) links += target == id ? 1 : 0;
    }
    return links;
  }

  FileInfo InfoOf(InodeId id) const {
    const Inode& inode = live.at(id);
    return {.type = inode.type,
            .size = inode.content.size(),
            .links = LinksTo(id),
            .inode = id,
            .uid = 0,
            .mode = inode.mode,
            .modified = Nanos(0)};
  }
};

namespace {

std::string NameOf(const std::string& path) { return path.substr(path.rfind('/') + 1); }

bool Aligned(uint64_t offset, std::span<const std::byte> bytes) {
  return (offset | bytes.size() | reinterpret_cast<uintptr_t>(bytes.data())) % kDirectAlignment == 0;
}

class SimFile final : public File {
 public:
  SimFile(std::shared_ptr<SimState> state, InodeId inode, std::string path, bool direct)
      : state_(std::move(state)), inode_(inode), path_(std::move(path)), direct_(direct) {
    ++state_->open_files;
  }
  ~SimFile() override { (void)Leave(); }

  absl::Status PWrite(uint64_t offset, std::span<const std::byte> bytes) override {
    absl::Status injected = state_->Call("write", path_);
    if (state_->log.size() >= state_->kill_at) return injected;
    if (direct_ && !Aligned(offset, bytes)) return FileError(EINVAL, "write", path_);
    injected.Update(state_->Allocate(inode_, offset + bytes.size(), "write", path_));
    if (!injected.ok()) bytes = bytes.first(bytes.size() / 2);
    std::string data(reinterpret_cast<const char*>(bytes.data()), bytes.size());
    std::string text = absl::StrCat("write ", path_, " ", offset, "+", bytes.size());
    state_->Do({.kind = Op::kSize, .inode = inode_, .size = offset + bytes.size(), .text = text});
    state_->Do({.kind = Op::kWrite, .inode = inode_, .offset = offset, .data = std::move(data), .text = text});
    return injected;
  }

  absl::StatusOr<size_t> PRead(uint64_t offset, std::span<std::byte> bytes) override {
    CKPTD_RETURN_IF_ERROR(state_->Call("read", path_));
    if (direct_ && !Aligned(offset, bytes)) return FileError(EINVAL, "read", path_);
    const std::string& content = state_->live.at(inode_).content;
    if (offset >= content.size()) return 0;
    size_t length = std::min<size_t>(bytes.size(), content.size() - offset);
    std::copy_n(reinterpret_cast<const std::byte*>(content.data()) + offset, length, bytes.data());
    return length;
  }

  absl::Status Fallocate(uint64_t size) override {
    CKPTD_RETURN_IF_ERROR(state_->Call("fallocate", path_));
    CKPTD_RETURN_IF_ERROR(state_->Allocate(inode_, size, "fallocate", path_));
    state_->Do({.kind = Op::kSize, .inode = inode_, .size = size, .text = absl::StrCat("fallocate ", path_)});
    return absl::OkStatus();
  }

  absl::Status PunchHole(uint64_t) override { return FileError(EOPNOTSUPP, "punch hole", path_); }

  absl::Status Sync() override { return state_->Sync(inode_, path_); }
  void StartWriteback(uint64_t, uint64_t) override {}

  absl::StatusOr<FileInfo> Stat() override {
    CKPTD_RETURN_IF_ERROR(state_->Call("fstat", path_));
    return state_->InfoOf(inode_);
  }

  absl::Status Close() override {
    CKPTD_RETURN_IF_ERROR(Leave());
    return state_->Call("close", path_);
  }

  int fd() const override { return -1; }
  const std::string& path() const override { return path_; }

 private:
  absl::Status Leave() {
    if (!std::exchange(open_, false)) return FileError(EBADF, "close", path_);
    --state_->open_files;
    return absl::OkStatus();
  }

  const std::shared_ptr<SimState> state_;
  const InodeId inode_;
  const std::string path_;
  const bool direct_;
  bool open_ = true;
};

}  // namespace

namespace {

sim::Tree EmptyRoot() {
  sim::Tree tree;
  tree.Put(sim::kRoot, std::make_shared<Inode>(Inode{.type = FileType::kDirectory, .mode = 0755}));
  return tree;
}

}  // namespace

SimFiles::SimFiles() : SimFiles(EmptyRoot()) {}
SimFiles::SimFiles(sim::Tree image) : state_(std::make_shared<SimState>()) {
  state_->next_inode = std::prev(image.end())->first + 1;
  state_->base = std::move(image);
  state_->live = state_->base;
}
SimFiles::SimFiles(SimFiles&&) noexcept = default;
SimFiles& SimFiles::operator=(SimFiles&&) noexcept = default;
SimFiles::~SimFiles() = default;

size_t SimFiles::OpCount() const { return state_->log.size(); }
std::string SimFiles::OpName(size_t op) const { return state_->log.at(op).text; }

SimFiles SimFiles::CrashImage(size_t op_count, uint64_t seed) const {
  sim::Disk disk(state_->base);
  for (size_t i = 0; i < op_count; ++i) disk.Play(state_->log[i]);
  return SimFiles(disk.Fail(sim::Lot(seed)));
}

const sim::Tree& SimFiles::base() const { return state_->base; }
const std::vector<sim::Op>& SimFiles::log() const { return state_->log; }
const sim::Tree& SimFiles::live() const { return state_->live; }

size_t SimFiles::CallCount() const { return state_->calls; }
void SimFiles::FailCall(size_t n, int error) {
  state_->fail_at = state_->calls + n;
  state_->fail_error = error;
}
void SimFiles::DropSync(size_t n) { state_->drop_syncs = {state_->syncs + n}; }
void SimFiles::DropSyncs(std::set<size_t> which) { state_->drop_syncs = std::move(which); }
size_t SimFiles::SyncCount() const { return state_->syncs; }
void SimFiles::DisableLinks() { state_->links = false; }
void SimFiles::DisableRenames() { state_->renames = false; }
void SimFiles::LoseReplyOfNextLink() { state_->lose_link_reply = true; }
void SimFiles::KillAt(size_t op_count) { state_->kill_at = op_count; }
void SimFiles::Revive() { state_->kill_at = SIZE_MAX; }
bool SimFiles::Killed() const { return state_->log.size() >= state_->kill_at; }
void SimFiles::ReplaceNames() { state_->replace = true; }
void SimFiles::SetFree(uint64_t bytes) { state_->free = bytes; }
size_t SimFiles::OpenFiles() const { return state_->open_files; }

absl::StatusOr<std::unique_ptr<File>> SimFiles::Open(const std::string& path, const OpenOptions& options) {
  CKPTD_RETURN_IF_ERROR(state_->Call("open", path));
  if (options.create) {
    CKPTD_ASSIGN_OR_RETURN(InodeId parent, state_->FindFree("open", path));
    state_->Do({.inode = parent,
                .name = NameOf(path),
                .target = state_->next_inode++,
                .make = sim::MakeInode{FileType::kRegular, options.mode},
                .text = absl::StrCat("create ", path)});
  }
  CKPTD_ASSIGN_OR_RETURN(InodeId inode, state_->Find(path));
  if (options.write && state_->live.at(inode).type == FileType::kDirectory) return FileError(EISDIR, "open", path);
  return std::make_unique<SimFile>(state_, inode, path, options.direct);
}

absl::Status SimFiles::Mkdir(const std::string& path, uint32_t mode) {
  CKPTD_RETURN_IF_ERROR(state_->Call("mkdir", path));
  CKPTD_ASSIGN_OR_RETURN(InodeId parent, state_->FindFree("mkdir", path));
  state_->Do({.inode = parent,
              .name = NameOf(path),
              .target = state_->next_inode++,
              .make = sim::MakeInode{FileType::kDirectory, mode},
              .text = absl::StrCat("mkdir ", path)});
  return absl::OkStatus();
}

absl::Status SimFiles::Rmdir(const std::string& path) {
  CKPTD_RETURN_IF_ERROR(state_->Call("rmdir", path));
  CKPTD_ASSIGN_OR_RETURN(InodeId id, state_->FindDirectory(path));
  if (!state_->live.at(id).entries.empty()) return FileError(ENOTEMPTY, "rmdir", path);
  CKPTD_ASSIGN_OR_RETURN(InodeId parent, state_->FindDirectory(ParentOf(path)));
  state_->Do({.inode = parent, .name = NameOf(path), .text = absl::StrCat("rmdir ", path)});
  return absl::OkStatus();
}

absl::Status SimFiles::Link(const std::string& from, const std::string& to) {
  CKPTD_RETURN_IF_ERROR(state_->Call("link", to));
  if (!state_->links) return FileError(EOPNOTSUPP, "link", to);
  CKPTD_ASSIGN_OR_RETURN(InodeId inode, state_->Find(from));
  CKPTD_ASSIGN_OR_RETURN(InodeId parent, state_->FindFree("link", to));
  state_->Do({.inode = parent, .name = NameOf(to), .target = inode, .text = absl::StrCat("link ", to)});
  return std::exchange(state_->lose_link_reply, false) ? FileError(EEXIST, "link", to) : absl::OkStatus();
}

absl::Status SimFiles::RenameNoReplace(const std::string& from, const std::string& to) {
  CKPTD_RETURN_IF_ERROR(state_->Call("rename", to));
  if (!state_->renames) return FileError(EOPNOTSUPP, "rename", to);
  CKPTD_ASSIGN_OR_RETURN(InodeId inode, state_->Find(from));
  CKPTD_ASSIGN_OR_RETURN(InodeId old_parent, state_->FindDirectory(ParentOf(from)));
  CKPTD_ASSIGN_OR_RETURN(InodeId parent, state_->FindFree("rename", to));
  state_->Do({.inode = parent, .name = NameOf(to), .target = inode, .text = absl::StrCat("rename to ", to)});
  state_->Do({.inode = old_parent, .name = NameOf(from), .text = absl::StrCat("rename from ", from)});
  return absl::OkStatus();
}

absl::Status SimFiles::Unlink(const std::string& path) {
  CKPTD_RETURN_IF_ERROR(state_->Call("unlink", path));
  CKPTD_ASSIGN_OR_RETURN(InodeId id, state_->Find(path));
  if (state_->live.at(id).type == FileType::kDirectory) return FileError(EISDIR, "unlink", path);
  CKPTD_ASSIGN_OR_RETURN(InodeId parent, state_->FindDirectory(ParentOf(path)));
  state_->Do({.inode = parent, .name = NameOf(path), .text = absl::StrCat("unlink ", path)});
  return absl::OkStatus();
}

absl::Status SimFiles::SyncDir(const std::string& path) {
  CKPTD_ASSIGN_OR_RETURN(InodeId id, state_->FindDirectory(path));
  return state_->Sync(id, path);
}

absl::StatusOr<std::vector<DirEntry>> SimFiles::ReadDir(const std::string& path, size_t max_entries) {
  CKPTD_RETURN_IF_ERROR(state_->Call("readdir", path));
  CKPTD_ASSIGN_OR_RETURN(InodeId id, state_->FindDirectory(path));
  const Inode& directory = state_->live.at(id);
  if (directory.entries.size() > max_entries) return FileError(EOVERFLOW, "readdir", path);
  std::vector<DirEntry> entries;
  for (const auto& [name, target] : directory.entries) entries.push_back({name, state_->live.at(target).type});
  return entries;
}

absl::StatusOr<FileInfo> SimFiles::Stat(const std::string& path) {
  CKPTD_RETURN_IF_ERROR(state_->Call("stat", path));
  CKPTD_ASSIGN_OR_RETURN(InodeId id, state_->Find(path));
  return state_->InfoOf(id);
}

absl::StatusOr<SpaceInfo> SimFiles::Space(const std::string& path) {
  CKPTD_RETURN_IF_ERROR(state_->Call("statvfs", path));
  return SpaceInfo{.total = uint64_t{1} << 40, .available = uint64_t{1} << 39};
}

}  // namespace ckptd
