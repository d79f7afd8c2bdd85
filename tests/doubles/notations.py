"""Chat templates that write calls as each family documents it; ours, and no more than that.

`calls` writes the calls of one turn; MESSAGES puts it where an assistant's turn has them.
"""

from __future__ import annotations

MESSAGES = (
    "{%- for m in messages %}<|{{ m.role }}|>{{ m.content }}"
    "{%- if m.tool_calls %}{{ calls(m.tool_calls) }}{% endif %}{% endfor %}"
    "{%- if tools %}{% endif %}<|assistant|>"
)
_EACH = "{%- for c in calls %}{%- set f = c.function %}"
_RAW = "{{ v if v is string else v | tojson }}"
_LISTED = "{{ {'name': f.name, 'arguments': f.arguments} | tojson }}{{ ', ' if not loop.last }}"
_GEMMA = """\
{%- macro value(v, quote) -%}
{%- if v is string %}{{ quote }}{{ v }}{{ quote }}
{%- elif v is boolean %}{{ 'true' if v else 'false' }}
{%- elif v is none %}null
{%- elif v is mapping %}{ {%- for k, w in v | items %}{{ k }}:{{ value(w, quote) }}
{{- ',' if not loop.last }}{% endfor %}}
{%- elif v is sequence %}[{% for w in v %}{{ value(w, quote) }}{{ ',' if not loop.last }}
{%- endfor %}]
{%- else %}{{ v | tojson }}
{%- endif %}{% endmacro -%}
"""


def _gemma(open: str, close: str, quote: str) -> str:
    return (
        "{%- for c in calls %}" + open + "call:{{ c.function.name }}{{ value(c.function.arguments, "
        "'" + quote + "') }}" + close + "{% endfor %}"
    )


CALLS = {
    "hermes": _EACH + "<tool_call>\n{{ {'name': f.name, 'arguments': f.arguments} | tojson }}\n"
    "</tool_call>\n{% endfor %}",
    "qwen": _EACH + "\n<tool_call>\n<function={{ f.name }}>\n{% for k, v in f.arguments | items %}"
    "<parameter={{ k }}>\n" + _RAW + "\n</parameter>\n{% endfor %}</function>\n</tool_call>"
    "{% endfor %}",
    "seed": _EACH + "\n<seed:tool_call>\n<function={{ f.name }}>\n"
    "{% for k, v in f.arguments | items %}<parameter={{ k }}>{{ v if v is string else v | string }}"
    "</parameter>\n{% endfor %}</function>\n</seed:tool_call>{% endfor %}",
    "nemotron": "<TOOLCALL>[" + _EACH + _LISTED + "{% endfor %}]</TOOLCALL>",
    "call-list": "\n<tool_calls>[" + _EACH + _LISTED + "{% endfor %}]</tool_calls>",
    "apertus": "<|tools_prefix|>[" + _EACH + "{{ {f.name: f.arguments} | tojson }}"
    "{{ ', ' if not loop.last }}{% endfor %}]<|tools_suffix|>",
    "olmo": "<function_calls>" + _EACH + "{{ f.name }}({% for k, v in f.arguments | items %}"
    "{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}){{ '\n' if not loop.last }}"
    "{% endfor %}</function_calls>",
    "kimi3": "<|close|>response<|sep|><|open|>tools<|sep|>" + _EACH +
    '<|open|>call tool="{{ f.name }}" index="{{ loop.index }}"<|sep|>'
    '{% for k, v in f.arguments | items %}<|open|>argument key="{{ k }}" type="'
    "{{ 'string' if v is string else 'number' }}\"<|sep|>" + _RAW + "<|close|>argument<|sep|>"
    "{% endfor %}<|close|>call<|sep|>{% endfor %}<|close|>tools<|sep|><|close|>message<|sep|>",
    "glm": _EACH + "<tool_call>{{ f.name }}\n{% for k, v in f.arguments | items %}<arg_key>{{ k }}"
    "</arg_key>\n<arg_value>" + _RAW + "</arg_value>\n{% endfor %}</tool_call>{% endfor %}",
    "longcat": _EACH + "<longcat_tool_call>{{ f.name }}\n{% for k, v in f.arguments | items %}"
    "<longcat_arg_key>{{ k }}</longcat_arg_key>\n<longcat_arg_value>" + _RAW +
    "</longcat_arg_value>\n{% endfor %}</longcat_tool_call>{% endfor %}",
    "minicpm": _EACH + '<function name="{{ f.name }}">{% for k, v in f.arguments | items %}'
    '<param name="{{ k }}"><![CDATA[' + _RAW + "]]></param>{% endfor %}</function>{% endfor %}",
    "minimax": "\n<minimax:tool_call>\n" + _EACH + '<invoke name="{{ f.name }}">\n'
    '{% for k, v in f.arguments | items %}<parameter name="{{ k }}">' + _RAW + "</parameter>\n"
    "{% endfor %}</invoke>\n{% endfor %}</minimax:tool_call>",
    "muse": "\n<atem:function_calls>\n" + _EACH + '<atem:invoke name="{{ f.name }}">\n'
    '{% for k, v in f.arguments | items %}<atem:parameter name="{{ k }}">' + _RAW +
    "</atem:parameter>\n{% endfor %}</atem:invoke>\n{% endfor %}</atem:function_calls>",
    "dsml": "\n\n<｜DSML｜function_calls>\n" + _EACH + '<｜DSML｜invoke name="{{ f.name }}">\n'
    "{% for k, v in f.arguments | items %}<｜DSML｜parameter name=\"{{ k }}\" "
    "string=\"{{ 'true' if v is string else 'false' }}\">" + _RAW + "</｜DSML｜parameter>\n"
    "{% endfor %}</｜DSML｜invoke>\n{% endfor %}</｜DSML｜function_calls>",
    "gemma4": _GEMMA + _gemma("<|tool_call>", "<tool_call|>", '<|"|>'),
    "function-gemma": _GEMMA + _gemma("<start_function_call>", "<end_function_call>", "<escape>"),
    "deepseek": "<｜tool▁calls▁begin｜>" + _EACH + "<｜tool▁call▁begin｜>{{ f.name }}<｜tool▁sep｜>"
    "{{ f.arguments | tojson }}<｜tool▁call▁end｜>{% endfor %}<｜tool▁calls▁end｜>",
    "kimi": "<|tool_calls_section_begin|>" + _EACH + "<|tool_call_begin|>functions.{{ f.name }}:"
    "{{ loop.index0 }}<|tool_call_argument_begin|>{{ f.arguments | tojson }}<|tool_call_end|>"
    "{% endfor %}<|tool_calls_section_end|>",
    "mistral": _EACH + "[TOOL_CALLS]{{ f.name }}[ARGS]{{ f.arguments | tojson }}{% endfor %}",
    "granite": "<|tool_call|>[" + _EACH +
    "{{ {'name': f.name, 'arguments': f.arguments} | tojson }}"
    "{{ ', ' if not loop.last }}{% endfor %}]",
    "cohere": "<|START_ACTION|>[\n" + _EACH + "{{ {'tool_call_id': loop.index0 | string, "
    "'tool_name': f.name, 'parameters': f.arguments} | tojson }}{{ ',\n' if not loop.last }}"
    "{% endfor %}\n]<|END_ACTION|>",
    "llama": "<|python_tag|>" + _EACH + "{{ {'name': f.name, 'parameters': f.arguments} | tojson }}"
    "{{ '; ' if not loop.last }}{% endfor %}",
    "llama4": "<|python_start|>[" + _EACH + "{{ f.name }}({% for k, v in f.arguments | items %}"
    "{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}"
    "{% endfor %}]<|python_end|>",
    "lfm": "<|tool_call_start|>[" + _EACH + "{{ f.name }}({% for k, v in f.arguments | items %}"
    "{{ k }}={{ v | tojson }}{{ ', ' if not loop.last }}{% endfor %}){{ ', ' if not loop.last }}"
    "{% endfor %}]<|tool_call_end|>",
    "harmony": _EACH + "{{ '<|start|>assistant' if not loop.first }}<|channel|>commentary "
    "to=functions.{{ f.name }} <|constrain|>json<|message|>{{ f.arguments | tojson }}<|call|>"
    "{% endfor %}",
}  # fmt: skip


def template(family: str) -> str:
    """Return a chat template of `family`."""
    return "{%- macro calls(calls) %}" + CALLS[family] + "{% endmacro %}" + MESSAGES
