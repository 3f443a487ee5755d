// Runs the files that are named, or those of the folders that are named, each once: replay FILE|FOLDER...
#include <algorithm>
#include <csignal>
#include <filesystem>
#include <fstream>
#include <iterator>

#include "tests/fuzz/caps.h"

namespace {

namespace fs = std::filesystem;

std::string current;  // what runs now, for a crash

void OnCrash(int signal) {
  (void)std::fprintf(stderr, "replay: %s ends with signal %d\n", current.c_str(), signal);
  (void)std::signal(signal, SIG_DFL);
  (void)std::raise(signal);
}

std::vector<fs::path> Inputs(int count, char** names) {
  std::vector<fs::path> inputs;
  for (int i = 1; i < count; ++i) {
    if (!fs::is_directory(names[i])) {
      inputs.emplace_back(names[i]);
      continue;
    }
    for (const auto& entry : fs::directory_iterator(names[i])) inputs.push_back(entry.path());
  }
  std::sort(inputs.begin(), inputs.end());
  return inputs;
}

bool Replay(const fs::path& path) {
  std::ifstream file(path, std::ios::binary);
  const std::string bytes{std::istreambuf_iterator<char>(file), std::istreambuf_iterator<char>()};
  if (!file) return false;
  current = path;
  ckptd::fuzz::RunCapped({reinterpret_cast<const uint8_t*>(bytes.data()), bytes.size()});
  return true;
}

}  // namespace

int main(int count, char** names) {
  for (int signal : {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGILL}) (void)std::signal(signal, OnCrash);
  const std::vector<fs::path> inputs = Inputs(count, names);
  for (const fs::path& path : inputs) {
    if (Replay(path)) continue;
    (void)std::fprintf(stderr, "replay: %s cannot be read\n", path.c_str());
    return 2;
  }
  std::printf("%zu inputs\n", inputs.size());
  return inputs.empty() ? 2 : 0;
}
