#include "tests/syscalls/real_tree.h"

#include <filesystem>
#include <fstream>
#include <iterator>

namespace ckptd::syscalls {
namespace {

namespace fs = std::filesystem;

void Put(const fs::path& path, sim::InodeId id, sim::InodeId& last, sim::Tree& tree) {
  auto inode = std::make_shared<sim::Inode>();
  if (!fs::is_directory(path)) {
    std::ifstream file(path, std::ios::binary);
    inode->content.assign(std::istreambuf_iterator<char>(file), {});
    return tree.Put(id, std::move(inode));
  }
  inode->type = FileType::kDirectory;
  for (const auto& entry : fs::directory_iterator(path)) {
    const sim::InodeId child = ++last;
    inode->entries[entry.path().filename()] = child;
    Put(entry.path(), child, last, tree);
  }
  tree.Put(id, std::move(inode));
}

}  // namespace

sim::Tree TreeBelow(const std::string& folder) {
  sim::Tree tree;
  sim::InodeId last = sim::kRoot;
  Put(folder, sim::kRoot, last, tree);
  return tree;
}

}  // namespace ckptd::syscalls
