/* The text below is TOOLS_TEMPLATE of the file encoding/encoding.py in the checkpoint
 * DeepSeek-V4.1-Flash. A model calls tools well only when it reads these very bytes, so they are
 * repeated here unchanged. The notice of their source:
 *
 * MIT License
 *
 * Copyright (c) 2023 DeepSeek
 *
 * Permission is hereby granted, free of charge, to any person obtaining a copy of this software
 * and associated documentation files (the "Software"), to deal in the Software without
 * restriction, including without limitation the rights to use, copy, modify, merge, publish,
 * distribute, sublicense, and/or sell copies of the Software, and to permit persons to whom the
 * Software is furnished to do so, subject to the following conditions:
 *
 * The above copyright notice and this permission notice shall be included in all copies or
 * substantial portions of the Software.
 *
 * THE SOFTWARE IS PROVIDED "AS IS", WITHOUT WARRANTY OF ANY KIND, EXPRESS OR IMPLIED, INCLUDING
 * BUT NOT LIMITED TO THE WARRANTIES OF MERCHANTABILITY, FITNESS FOR A PARTICULAR PURPOSE AND
 * NONINFRINGEMENT. IN NO EVENT SHALL THE AUTHORS OR COPYRIGHT HOLDERS BE LIABLE FOR ANY CLAIM,
 * DAMAGES OR OTHER LIABILITY, WHETHER IN AN ACTION OF CONTRACT, TORT OR OTHERWISE, ARISING FROM,
 * OUT OF OR IN CONNECTION WITH THE SOFTWARE OR THE USE OR OTHER DEALINGS IN THE SOFTWARE.
 */
#include "text/tools_preamble.h"

const char di_tools_preamble[] =
    "## Tools\n"
    "\n"
    "You have access to a set of tools to help answer the user's question. You can invoke "
    "tools by writing a \"<{dsml_token}{tc_block_name}>\" block like the following:\n"
    "\n"
    "<{dsml_token}{tc_block_name}>\n"
    "<{dsml_token}{tool_call_tag_name} name=\"$TOOL_NAME\">\n"
    "<{dsml_token}{tool_parameter_tag_name} name=\"$PARAMETER_NAME\" "
    "string=\"true|false\">$PARAMETER_VALUE</{dsml_token}{tool_parameter_tag_name}>\n"
    "...\n"
    "</{dsml_token}{tool_call_tag_name}>\n"
    "<{dsml_token}{tool_call_tag_name} name=\"$TOOL_NAME2\">\n"
    "...\n"
    "</{dsml_token}{tool_call_tag_name}>\n"
    "</{dsml_token}{tc_block_name}>\n"
    "\n"
    "String parameters should be specified as is and set `string=\"true\"`. For all other "
    "types (numbers, booleans, arrays, objects), pass the value in JSON format and set "
    "`string=\"false\"`.\n"
    "\n"
    "If thinking_mode is enabled (triggered by {thinking_start_token}), you MUST output your "
    "complete reasoning inside {thinking_start_token}...{thinking_end_token} BEFORE any tool "
    "calls or final response.\n"
    "\n"
    "Otherwise, output directly after {thinking_end_token} with tool calls or final "
    "response.\n"
    "\n"
    "### Available Tool Schemas\n"
    "\n"
    "{tool_schemas}\n"
    "\n"
    "You MUST strictly follow the above defined tool name and parameter schemas to invoke "
    "tool calls.\n";
