// Bytes that a release has written and every later one must read: tests/golden/v1/. They are never written anew once
// shipped; a format that changes gets a folder of its own.
//
// Made by:  CKPTD_UPDATE=1 build/dev/bin/golden_test
#ifndef CKPTD_TESTS_GOLDEN_GOLDEN_H_
#define CKPTD_TESTS_GOLDEN_GOLDEN_H_

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>
#include <string>

namespace ckptd::golden {

inline bool Updating() { return std::getenv("CKPTD_UPDATE") != nullptr; }

inline std::filesystem::path Folder(const std::string& name) {
  return std::filesystem::path(CKPTD_SOURCE_DIR) / "tests/golden/v1" / name;
}

// An empty folder in the place of what was there. Only when updating.
inline std::filesystem::path NewFolder(const std::string& name) {
  std::filesystem::remove_all(Folder(name));
  std::filesystem::create_directories(Folder(name));
  return Folder(name);
}

inline std::string ReadFile(const std::filesystem::path& path) {
  std::ostringstream text;
  text << std::ifstream(path, std::ios::binary).rdbuf();
  return text.str();
}

}  // namespace ckptd::golden

#endif  // CKPTD_TESTS_GOLDEN_GOLDEN_H_
