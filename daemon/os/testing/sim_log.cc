#include "daemon/os/testing/sim_log.h"

#include <algorithm>
#include <random>

namespace ckptd::sim {
namespace {

constexpr uint64_t kKeepNothing = 0;
constexpr uint64_t kKeepAll = 1;

void WriteInto(std::string& content, uint64_t offset, const std::string& data) {
  if (content.size() < offset + data.size()) content.resize(offset + data.size());
  content.replace(offset, data.size(), data);
}

void Make(Tree& tree, const Op& op) {
  if (!op.make) return;
  tree[*op.target] = Inode{.type = op.make->type, .mode = op.make->mode, .content = {}, .entries = {}};
}

// The disk: what is durable of each inode, and what is not yet.
class Disk {
 public:
  Disk(Tree base, uint64_t seed) : tree_(std::move(base)), seed_(seed), random_(seed) {
    for (auto& [id, inode] : tree_) size_[id] = inode.content.size();
  }

  void Play(Op op) {
    Make(tree_, op);
    op.make.reset();  // the inode exists from now on; what can be lost is its name and content
    if (op.kind == Op::kSync) return Settle(op.inode, /*all=*/true);
    // The kernel forgets what was dirty: each piece is on the disk or is lost, now and for ever.
    if (op.kind == Op::kSyncFailed) return Settle(op.inode, /*all=*/false);
    if (op.kind != Op::kWrite) return pending_[op.inode].push_back(std::move(op));
    for (uint64_t begin = 0; begin < op.data.size();) PushBlock(op, begin);
  }

  Tree Fail() {
    while (!pending_.empty()) Settle(pending_.begin()->first, /*all=*/false);
    for (auto& [id, inode] : tree_) inode.content.resize(size_[id]);
    Tree reachable;
    Collect(kRoot, reachable);
    return reachable;
  }

 private:
  // One block of the write that starts at byte `begin` of its data; moves `begin` to the next block.
  void PushBlock(const Op& op, uint64_t& begin) {
    const uint64_t offset = op.offset + begin;
    const uint64_t length = std::min(op.data.size() - begin, kBlock - offset % kBlock);
    pending_[op.inode].push_back(
        {.kind = Op::kWrite, .inode = op.inode, .offset = offset, .data = op.data.substr(begin, length)});
    begin += length;
  }

  void Settle(InodeId id, bool all) {
    auto pending = pending_.extract(id);
    if (pending.empty()) return;
    for (const Op& op : pending.mapped()) {
      if (all || Keep()) Persist(op);
    }
  }

  void Persist(const Op& op) {
    if (op.kind == Op::kSize) {
      size_[op.inode] = std::max(size_[op.inode], op.size);
    } else {
      Apply(tree_, op);
    }
  }

  bool Keep() {
    if (seed_ == kKeepNothing || seed_ == kKeepAll) return seed_ == kKeepAll;
    return (random_() & 1) != 0;
  }

  void Collect(InodeId id, Tree& reachable) {
    if (reachable.contains(id)) return;
    const Inode& inode = reachable.emplace(id, tree_.at(id)).first->second;
    for (const auto& [name, target] : inode.entries) Collect(target, reachable);
  }

  Tree tree_;  // of a file: durable blocks; size_ says how many of them count
  std::map<InodeId, uint64_t> size_;
  std::map<InodeId, std::vector<Op>> pending_;
  const uint64_t seed_;
  std::mt19937_64 random_;
};

}  // namespace

void Apply(Tree& tree, const Op& op) {
  Make(tree, op);
  Inode& inode = tree.at(op.inode);
  if (op.kind == Op::kWrite) WriteInto(inode.content, op.offset, op.data);
  if (op.kind == Op::kSize) inode.content.resize(std::max<uint64_t>(inode.content.size(), op.size));
  if (op.kind != Op::kEntry) return;
  if (op.target) {
    inode.entries[op.name] = *op.target;
  } else {
    inode.entries.erase(op.name);
  }
}

Tree Crash(const Tree& base, const std::vector<Op>& log, size_t count, uint64_t seed) {
  Disk disk(base, seed);
  for (size_t i = 0; i < count; ++i) disk.Play(log[i]);
  return disk.Fail();
}

}  // namespace ckptd::sim
