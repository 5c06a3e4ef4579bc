// SPDX-License-Identifier: Apache-2.0

package lookup

import (
	"fmt"
	"net/url"
	"strings"
)

// ModelLabel is a model as dumps and digests call it: model:group, and @tenant where
// that is not the default. Within group and tenant the separators are percent-encoded,
// so that no two models have one label.
func ModelLabel(tenant, model, group string) string {
	label := model + ":" + escapeLabel(group)
	if tenant != DefaultName {
		label += "@" + escapeLabel(tenant)
	}
	return label
}

var escapeLabel = strings.NewReplacer("%", "%25", ":", "%3A", "@", "%40").Replace

// ParseModelLabel is ModelLabel's inverse.
func ParseModelLabel(label string) (tenant, model, group string, err error) {
	i := strings.LastIndexByte(label, ':')
	if i < 0 {
		return "", "", "", fmt.Errorf("model %.100q must be model:group or model:group@tenant", label)
	}
	model = label[:i]
	group, tenant, hasTenant := strings.Cut(label[i+1:], "@")
	if !hasTenant {
		tenant = DefaultName
	}
	if group, err = url.PathUnescape(group); err == nil {
		tenant, err = url.PathUnescape(tenant)
	}
	return tenant, model, group, err
}
