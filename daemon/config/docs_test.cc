// The files made from the table of keys are up to date. To write them anew:
//   CKPTD_UPDATE=1 build/dev/bin/config_test --gtest_filter='Docs.*'
#include "daemon/config/docs.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <sstream>

#include "daemon/config/config.h"
#include "daemon/config/load.h"

namespace ckptd {
namespace {

const std::string kConfigFile = std::string(CKPTD_SOURCE_DIR) + "/deploy/config/ckptd.toml";
const std::string kReadme = std::string(CKPTD_SOURCE_DIR) + "/README.md";
constexpr char kBegin[] = "<!-- config:begin -->\n";
constexpr char kEnd[] = "<!-- config:end -->";

bool Update() { return std::getenv("CKPTD_UPDATE") != nullptr; }

std::string ReadFile(const std::string& path) {
  std::ostringstream text;
  text << std::ifstream(path).rdbuf();
  return text.str();
}

void WriteFile(const std::string& path, const std::string& text) {
  std::filesystem::create_directories(std::filesystem::path(path).parent_path());
  std::ofstream(path) << text;
}

TEST(Docs, ConfigFileIsUpToDate) {
  if (Update()) WriteFile(kConfigFile, ConfigFileText());
  EXPECT_EQ(ReadFile(kConfigFile), ConfigFileText()) << "see the top of docs_test.cc";
}

TEST(Docs, ReadmeTableIsUpToDate) {
  if (!std::filesystem::exists(kReadme)) GTEST_SKIP() << "README.md is not in this tree";
  std::string readme = ReadFile(kReadme);
  size_t begin = readme.find(kBegin);
  size_t end = readme.find(kEnd);
  ASSERT_TRUE(begin != std::string::npos && end != std::string::npos) << "README.md lacks " << kBegin;
  begin += sizeof(kBegin) - 1;
  if (Update()) WriteFile(kReadme, readme.substr(0, begin) + ConfigTableText() + readme.substr(end));
  EXPECT_EQ(ReadFile(kReadme).substr(begin, ConfigTableText().size() + sizeof(kEnd) - 1), ConfigTableText() + kEnd)
      << "see the top of docs_test.cc";
}

TEST(Docs, ConfigFileLoadsAsTheDefaultsAlsoUncommented) {
  auto as_it_is = LoadConfig(ConfigFileText(), "f", Config());
  ASSERT_TRUE(as_it_is.ok()) << as_it_is.status();
  EXPECT_EQ(*as_it_is, Config());

  std::istringstream lines(ConfigFileText());
  std::string uncommented;
  int keys = 0;
  for (std::string line; std::getline(lines, line);) {
    bool key = line.size() > 1 && line[0] == '#' && line[1] != ' ';
    keys += key ? 1 : 0;
    uncommented += key ? line.substr(1) + "\n" : line + "\n";
  }
  auto explicit_defaults = LoadConfig(uncommented, "f", Config());
  ASSERT_TRUE(explicit_defaults.ok()) << explicit_defaults.status();
  EXPECT_EQ(*explicit_defaults, Config());
  EXPECT_GT(keys, 20);
}

}  // namespace
}  // namespace ckptd
