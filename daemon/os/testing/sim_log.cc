#include "daemon/os/testing/sim_log.h"

#include <algorithm>
#include <cstring>
#include <iterator>
#include <utility>

namespace ckptd::sim {
namespace {

constexpr uint64_t kOdd = 0x9e3779b97f4a7c15;

uint64_t Mix(uint64_t value) {
  value = (value ^ (value >> 30)) * 0xbf58476d1ce4e5b9;
  value = (value ^ (value >> 27)) * 0x94d049bb133111eb;
  return value ^ (value >> 31);
}

void WriteInto(std::string& content, uint64_t offset, const std::string& data) {
  if (content.size() < offset + data.size()) content.resize(offset + data.size());
  content.replace(offset, data.size(), data);
}

void Make(Tree& tree, const Op& op) {
  if (!op.make) return;
  tree.Put(*op.target, std::make_shared<Inode>(Inode{.type = op.make->type, .mode = op.make->mode}));
}

// Nothing of what the operation makes; `size`: how many bytes of the content count, which blocks do not change.
void Change(Inode& inode, const Op& op, uint64_t* size) {
  if (op.kind == Op::kWrite) WriteInto(inode.content, op.offset, op.data);
  if (op.kind == Op::kSize) *size = std::max(*size, op.size);
  if (op.kind != Op::kEntry) return;
  if (op.target) {
    inode.entries[op.name] = *op.target;
  } else {
    inode.entries.erase(op.name);
  }
}

class Hasher {
 public:
  Hasher(const Tree& tree, const std::function<bool(const std::string&)>& anonymous)
      : tree_(tree), anonymous_(anonymous) {
    links_.resize(std::prev(tree.end())->first + 1);
    for (const auto& [id, inode] : tree) {
      for (const auto& [name, target] : inode->entries) ++links_[target];
    }
  }

  // A sum, so that names without an order of their own do not bring one in.
  uint64_t Hash(InodeId id) {
    const Inode& inode = tree_.at(id);
    if (inode.type != FileType::kDirectory) return Mix(ContentHash(inode) + links_[id]);
    uint64_t sum = 1;
    for (const auto& [name, target] : inode.entries) {
      const uint64_t known = anonymous_(name) ? 7 : HashBytes(name);
      sum += Mix(known * kOdd + Hash(target));
    }
    return Mix(sum);
  }

 private:
  const Tree& tree_;
  const std::function<bool(const std::string&)>& anonymous_;
  std::vector<uint32_t> links_;  // by inode
};

void Collect(InodeId id, const std::function<std::shared_ptr<Inode>(InodeId)>& find, Tree& reachable) {
  if (reachable.contains(id)) return;
  std::shared_ptr<Inode> inode = find(id);
  const Inode& held = *inode;
  reachable.Put(id, std::move(inode));
  for (const auto& [name, target] : held.entries) Collect(target, find, reachable);
}

}  // namespace

Inode& Tree::Edit(InodeId id) {
  std::shared_ptr<Inode>& inode = inodes_.at(id);
  if (inode.use_count() > 1) inode = std::make_shared<Inode>(*inode);
  inode->hash = 0;
  return *inode;
}

void Apply(Tree& tree, const Op& op) {
  Make(tree, op);
  Inode& inode = tree.Edit(op.inode);
  uint64_t size = inode.content.size();
  Change(inode, op, &size);
  if (op.kind == Op::kSize) inode.content.resize(size);
}

uint64_t HashBytes(absl::string_view bytes) {
  uint64_t hash = Mix(bytes.size() + kOdd);
  for (; bytes.size() >= sizeof(uint64_t); bytes.remove_prefix(sizeof(uint64_t))) {
    uint64_t word = 0;
    std::memcpy(&word, bytes.data(), sizeof word);
    hash = (hash ^ word) * kOdd;
    hash ^= hash >> 29;
  }
  uint64_t last = 0;
  std::memcpy(&last, bytes.data(), bytes.size());
  return Mix(hash ^ last);
}

uint64_t ContentHash(const Inode& file) {
  if (file.hash == 0) file.hash = HashBytes(file.content);
  return file.hash;
}

uint64_t HashOf(const Tree& tree, const std::function<bool(const std::string&)>& anonymous) {
  return Hasher(tree, anonymous).Hash(kRoot);
}

Lot Lot::Subset(uint64_t bits) {
  Lot lot(bits);
  lot.kind_ = Kind::kBits;
  return lot;
}

bool Lot::Keep() {
  if (kind_ == Kind::kSame) return state_ == 1;
  if (kind_ == Kind::kBits) {
    const bool keep = (state_ & 1) != 0;
    state_ >>= 1;
    return keep;
  }
  state_ += kOdd;
  return (Mix(state_) & 1) != 0;
}

void Disk::Play(Op op) {
  Make(tree_, op);
  op.make.reset();  // the inode exists from now on; what can be lost is its name and content
  op.text.clear();
  if (op.kind == Op::kSync) return Settle(op.inode);
  if (op.kind == Op::kSyncFailed) {
    for (Piece& piece : pending_[op.inode]) piece.forgotten = !piece.certain;
    return;
  }
  if (op.kind != Op::kWrite) {
    auto& pieces = pending_[op.inode];
    return pieces.push_back({std::move(op)});
  }
  for (uint64_t begin = 0; begin < op.data.size();) PushBlock(op, begin);
}

// One block of the write that starts at byte `begin` of its data; moves `begin` to the next block.
void Disk::PushBlock(const Op& op, uint64_t& begin) {
  const uint64_t offset = op.offset + begin;
  const uint64_t length = std::min(op.data.size() - begin, kBlock - offset % kBlock);
  pending_[op.inode].push_back(
      {{.kind = Op::kWrite, .inode = op.inode, .offset = offset, .data = op.data.substr(begin, length)}});
  begin += length;
}

void Disk::Settle(InodeId id) {
  auto pending = pending_.find(id);
  if (pending == pending_.end()) return;
  std::vector<Piece>& pieces = pending->second;
  if (std::any_of(pieces.begin(), pieces.end(), [](const Piece& piece) { return piece.forgotten; })) {
    for (Piece& piece : pieces) piece.certain = !piece.forgotten;
    return;
  }
  Lot all(1);
  tree_.Put(id, Maybe(id, pieces, all));
  pending_.erase(pending);
}

size_t Disk::Uncertain() const {
  size_t count = 0;
  for (const auto& [id, pieces] : pending_) {
    for (const Piece& piece : pieces) count += piece.certain ? 0 : 1;
  }
  return count;
}

std::shared_ptr<Inode> Disk::Maybe(InodeId id, const std::vector<Piece>& pieces, Lot& lot) const {
  auto inode = std::make_shared<Inode>(tree_.at(id));
  inode->hash = 0;
  uint64_t size = inode->content.size();
  for (const Piece& piece : pieces) {
    if (piece.certain || lot.Keep()) Change(*inode, piece.op, &size);
  }
  inode->content.resize(size);
  return inode;
}

Tree Disk::Fail(Lot lot) const {
  std::map<InodeId, std::shared_ptr<Inode>> changed;
  for (const auto& [id, pieces] : pending_) changed[id] = Maybe(id, pieces, lot);
  Tree reachable;
  const auto find = [&](InodeId id) {
    const auto found = changed.find(id);
    return found == changed.end() ? tree_.Share(id) : found->second;
  };
  Collect(kRoot, find, reachable);
  return reachable;
}

}  // namespace ckptd::sim
